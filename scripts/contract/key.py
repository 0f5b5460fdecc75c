"""Makes the first key of a server and prints it."""

import json
import sys
import urllib.request

body = json.dumps({"role": "admin", "namespace": "*"}).encode()
request = urllib.request.Request(sys.argv[1] + "/api/v1/keys", body, {"content-type": "application/json"})
print(json.load(urllib.request.urlopen(request))["key"])
