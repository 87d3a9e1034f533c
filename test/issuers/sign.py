# Signs tokens with PyJWT. Reads a JSON list of requests from stdin, writes the list of tokens.
import json
import sys

import jwt

print(json.dumps([
    jwt.encode(request["claims"], request["key"], request["alg"], request["header"])
    for request in json.load(sys.stdin)
]))
