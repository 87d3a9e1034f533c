"""A backend for the two pages beside it, in Python without packages: python3 docs/examples/backend.py"""
import json, os, pathlib, re, secrets, threading, time, urllib.error, urllib.request, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

env = os.environ.get
API, CLIENT = env("API", "http://127.0.0.1:5001"), env("CLIENT", "ws://127.0.0.1:5200")
SDK, PORT = pathlib.Path(env("SDK", "dist-client")), int(env("PORT", "8080"))
LOBBY, tokens = {"channel_id": "lobby", "channel_type": 2}, {}  # in production: a database, behind your own login

def call(path, **body):
    headers = {"content-type": "application/json", "token": env("API_TOKEN", "")}
    request = urllib.request.Request(API + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response: return json.load(response)

def join(name):
    token = tokens.setdefault(name, secrets.token_urlsafe(24))  # one for all pages of the user
    call("/user/token", uid=name, token=token, device_flag=1)
    call("/channel/subscriber_add", **LOBBY, subscribers=[name])
    return {"uid": name, "token": token, "url": CLIENT}

def ask(uid, token, question):
    if tokens.get(uid) != token: raise PermissionError("Join first.")
    bot = {"from_uid": "bot", "channel_id": uid, "channel_type": 1, "client_msg_no": str(uuid.uuid4())}
    post = lambda type, data: call("/event?force=1", **bot, event={"type": type, "data": data})
    post("___TextMessageStart", "")
    answer = f"You asked: {question} A model would answer here, word by word."
    return threading.Thread(target=write, args=(post, answer), daemon=True).start() or {}

def write(post, answer):
    for word in answer.split(" "):
        if post("___TextMessageContent", f"{word} ")["stream"]["state"] != "active": return  # stopped
        time.sleep(0.08)
    post("___TextMessageEnd", "")

class Pages(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            self.reply(200, "application/json", json.dumps({"/join": join, "/ask": ask}[self.path](**body)))
        except Exception as error:
            reason = json.load(error)["error"] if isinstance(error, urllib.error.HTTPError) else str(error)
            self.reply(400, "text/plain", reason)

    def do_GET(self):
        match = re.fullmatch(r"/(sdk/)?([\w-]+\.(?:html|js))", self.path)
        if match is None: return self.reply(404, "text/plain", "There is no such page.")
        file = (SDK if match[1] else pathlib.Path(__file__).parent) / match[2]
        self.reply(200, "text/javascript" if match[1] else "text/html; charset=utf-8", file.read_text())

    def reply(self, status, type, text):
        self.send_response(status)
        self.send_header("content-type", type)
        self.end_headers()
        self.wfile.write(text.encode())

try: call("/channel", **LOBBY)
except urllib.error.HTTPError as error:
    if error.code != 409: raise  # 409: the group exists
print(f"Open http://127.0.0.1:{PORT}/chat.html or /ai.html", flush=True)
ThreadingHTTPServer(("127.0.0.1", PORT), Pages).serve_forever()
