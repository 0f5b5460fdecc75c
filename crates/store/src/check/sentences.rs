//! Invariants between tables, as questions that find the rows for which it is not. Both databases read them.

pub struct Sentence {
    pub code: &'static str,
    pub sql: &'static str,
}

const fn sentence(code: &'static str, sql: &'static str) -> Sentence {
    Sentence { code, sql }
}

pub const ALL: &[Sentence] = &[
    sentence(
        "no-present",
        "select t.id, 'it has a body and is neither open nor over' from task t
         left join task_open o on o.id = t.id left join task_done d on d.id = t.id
         where o.id is null and d.id is null",
    ),
    sentence("two-presents", "select o.id, 'it is open and over at once' from task_open o join task_done d on d.id = o.id"),
    sentence(
        "no-body",
        "select o.id, 'it is open and has no body' from task_open o left join task t on t.id = o.id where t.id is null
         union all
         select d.id, 'it is over and has no body' from task_done d left join task t on t.id = d.id where t.id is null",
    ),
    // A task may be put under other rules while it is open; all else of its lane stays.
    sentence(
        "body-disagrees",
        "select o.id, 'its open row has another ' || case
             when coalesce(n.lane, o.lane) <> coalesce(r.lane, t.lane) then 'lane'
             when o.execution_id is distinct from t.execution_id then 'execution'
             when o.policy is distinct from t.policy then 'policy' when o.submitted_at <> t.submitted_at then 'age'
             else 'deadline' end || ' than its body'
         from task_open o join task t on t.id = o.id
           left join ruled_lane n on n.id = o.lane left join ruled_lane r on r.id = t.lane
         where coalesce(n.lane, o.lane) <> coalesce(r.lane, t.lane) or o.execution_id is distinct from t.execution_id
           or o.policy is distinct from t.policy or o.submitted_at <> t.submitted_at
           or o.hard_deadline <> t.hard_deadline
         union all
         select d.id, 'its last row has another ' || case
             when coalesce(n.lane, d.lane) <> coalesce(r.lane, t.lane) then 'lane'
             when d.execution_id is distinct from t.execution_id then 'execution'
             else 'policy' end || ' than its body'
         from task_done d join task t on t.id = d.id
           left join ruled_lane n on n.id = d.lane left join ruled_lane r on r.id = t.lane
         where coalesce(n.lane, d.lane) <> coalesce(r.lane, t.lane) or d.execution_id is distinct from t.execution_id
           or d.policy is distinct from t.policy",
    ),
    sentence(
        "unknown-number",
        "select t.id, 'its lane ' || t.lane || ' does not exist, or is of another namespace' from task t
         left join ruled_lane r on r.id = t.lane
         left join lane l on l.id = coalesce(r.lane, t.lane) and l.namespace = t.namespace where l.id is null
         union all
         select t.id, 'its policy ' || t.policy || ' does not exist' from task t
         left join policy p on p.id = t.policy where t.policy is not null and p.id is null
         union all
         select e.id, 'its namespace ' || e.namespace || ' does not exist' from execution e
         left join namespace n on n.id = e.namespace where n.id is null",
    ),
    sentence(
        "no-execution",
        "select t.id, 'its execution is not there' from task t left join execution e on e.id = t.execution_id
         where t.execution_id is not null and e.id is null",
    ),
    sentence(
        "history-of-nobody",
        "select h.subject, 'there is history of it, and it is no task and no execution' from history h
         left join task t on t.id = h.subject left join execution e on e.id = h.subject
         where t.id is null and e.id is null group by h.subject",
    ),
    sentence(
        "history-elsewhere",
        "select h.subject, 'its history is in the log of another execution' from history h
         join task t on t.id = h.subject where h.execution_id is distinct from t.execution_id group by h.subject
         union all
         select h.subject, 'its history is in the log of another execution' from history h
         join execution e on e.id = h.subject where h.execution_id is distinct from e.id group by h.subject",
    ),
    sentence(
        "edge",
        "select e.from_id, 'an edge leads from it to a task that is not there, or is of another execution' from edge e
         left join task a on a.id = e.from_id left join task b on b.id = e.to_id
         where a.id is null or b.id is null or a.execution_id is distinct from b.execution_id or a.execution_id is null",
    ),
    sentence(
        "payload",
        "select p.task_id, 'there is an old payload of it, and it is no task' from task_payload p
         left join task t on t.id = p.task_id where t.id is null",
    ),
    // The second of the marks in that column says that a task costs something.
    sentence(
        "statistics",
        "select cast(null as uuid), 'sums of ' || s.at || ' are in cell ' || s.cell || ', which does not exist' from stat s
         left join stat_cell c on c.id = s.cell where c.id is null group by s.at, s.cell
         union all
         select cast(null as uuid), 'cell ' || c.id || ' is in namespace ' || c.namespace || ', which does not exist'
         from stat_cell c left join namespace n on n.id = c.namespace where n.id is null
         union all
         select cast(null as uuid), 'an error group is in namespace ' || g.namespace || ', which does not exist'
         from error_group g left join namespace n on n.id = g.namespace where n.id is null",
    ),
    sentence(
        "account",
        "select cast(null as uuid), 'the account ' || a.name || ' has reserved ' || a.reserved || ', and its open tasks cost '
           || coalesce(s.cost, 0) from account a
         left join (select t.namespace, t.account, cast(sum(t.cost) as bigint) as cost from task_open o
             join task t on t.id = o.id where o.hooked >= 2 group by t.namespace, t.account) s
           on s.namespace = a.namespace and s.account = a.name
         where a.reserved <> coalesce(s.cost, 0)
         union all
         select o.id, 'its open row and its body disagree on whether it costs something' from task_open o
         join task t on t.id = o.id where (o.hooked >= 2) <> (t.account is not null)
         union all
         select o.id, 'its account `' || t.account || '` is not there' from task_open o join task t on t.id = o.id
         left join account a on a.namespace = t.namespace and a.name = t.account
         where t.account is not null and a.name is null",
    ),
    // States 0 and 4 are under way; the rows of tasks may be ahead of the count until the next stretch is noted down.
    sentence(
        "operation",
        "select o.id, 'it is a bulk operation with ' || o.done || ' tasks changed and ' || o.undone || ' changed back, and '
           || count(m.task_id) || ' and ' || coalesce(sum(m.undone), 0) || ' are marked' from operation o
         left join operation_task m on m.operation = o.id group by o.id, o.done, o.undone, o.state
         having o.done > count(m.task_id) or (o.state <> 0 and o.done <> count(m.task_id))
           or o.undone > coalesce(sum(m.undone), 0) or (o.state <> 4 and o.undone <> coalesce(sum(m.undone), 0))
         union all
         select o.id, 'it is a bulk operation of ' || o.total || ' tasks and names others' from operation o
         left join operation_part p on p.operation = o.id group by o.id, o.total
         having o.total * 16 <> coalesce(sum(length(p.ids)), 0)
         union all
         select o.id, 'it is a bulk operation that is under way and over, or neither' from operation o
         where (o.state in (0, 4)) <> (o.due is not null) or (o.state in (0, 4)) <> (o.ended_at is null)
         union all
         select m.operation, 'tasks are marked by it, and it is no bulk operation' from operation_task m
         left join operation o on o.id = m.operation where o.id is null group by m.operation
         union all
         select p.operation, 'it names tasks, and it is no bulk operation' from operation_part p
         left join operation o on o.id = p.operation where o.id is null group by p.operation",
    ),
    sentence(
        "dependency",
        "select cast(null as uuid), 'the dependency ' || d.name || ' holds nothing: its rule is not there' from dependency d
         left join rule r on r.namespace = d.namespace and r.name = '@' || d.name where r.name is null",
    ),
    sentence(
        "follower",
        "select cast(null as uuid), 'the ' || f.sort || ' ' || f.name || ' is of no namespace, or cannot be read' from (
           select 'schedule' as sort, namespace, name, version, body, standing from schedule union all
           select 'subscription', namespace, name, version, body, standing from subscription union all
           select 'alert', namespace, name, version, body, standing from alert) f
         left join namespace n on n.id = f.namespace
         where n.id is null or f.version < 1 or f.body not like '{%' or f.standing not like '{%'",
    ),
    sentence(
        "dedupe",
        "select k.task_id, 'it holds the dedupe key `' || k.key || '` and is not open, or has another one' from dedupe k
         left join task_open o on o.id = k.task_id left join task t on t.id = k.task_id
         where o.id is null or t.dedupe_key is distinct from k.key or t.namespace <> k.namespace or o.dedupe = 0
         union all
         select o.id, 'it is open and does not hold its dedupe key `' || t.dedupe_key || '`' from task_open o
         join task t on t.id = o.id left join dedupe k on k.task_id = o.id
         where t.dedupe_key is not null and k.task_id is null
         union all
         select o.id, 'its row says that it holds a dedupe key, and it has none' from task_open o
         join task t on t.id = o.id where o.dedupe <> 0 and t.dedupe_key is null",
    ),
];
