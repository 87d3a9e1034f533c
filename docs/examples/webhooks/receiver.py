# A receiver of webhooks with Python's standard library. PORT is its port, and SECRET_FILE the file
# with the secret of the webhook.

import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

seen = set()  # use your database: an event can arrive twice


def is_signed(headers, body):
    with open(os.environ["SECRET_FILE"]) as file:
        key = base64.b64decode(file.read().strip().removeprefix("whsec_"))
    sent_at = headers["webhook-timestamp"]
    if abs(time.time() - int(sent_at)) > 300:
        return False
    content = f"{headers['webhook-id']}.{sent_at}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return any(
        hmac.compare_digest(candidate, f"v1,{signature}")
        for candidate in headers["webhook-signature"].split(" ")
    )


class Receiver(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(204)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not is_signed(self.headers, body):
            return self.reply(401)
        content = json.loads(body)
        events = content["data"]["events"] if content["type"] == "batch" else [content]
        for event in events:
            if event["id"] in seen:
                continue
            seen.add(event["id"])
            data = event["data"]
            print(event["type"], data.get("channel_key", ""), data.get("message_seq", ""), flush=True)
        self.reply(204)

    def reply(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
