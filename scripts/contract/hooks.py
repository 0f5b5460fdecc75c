"""What must not be asked at random: to wait for a minute, to revoke the key that is used, and what nobody can refuse."""

import os

import schemathesis

OWN_KEY = os.environ["COMEBACK_API_KEY"].split("_")[1]


@schemathesis.hook
def filter_case(context, case):
    # A header that means nothing to a server is none of its business.
    return "x-schemathesis-unknown-property" not in (case.headers or {})


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    if operation == "leaseTasks" and isinstance(case.body, dict) and "wait" in case.body:
        # A wait that is good is made short; one that is wrong stays as it is.
        if case.meta is None or case.meta.generation.mode.is_positive:
            case.body["wait"] = "20ms"
    if operation == "revokeKey" and case.path_parameters.get("id") == OWN_KEY:
        case.path_parameters["id"] = "000000000000"
