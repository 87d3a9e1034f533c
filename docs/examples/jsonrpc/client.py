"""Sends a message, prints messages, resumes: python3 client.py ws://127.0.0.1:5200 bob token-bob team"""
import asyncio, base64, json, sys, uuid, websockets

url, uid, token, group = sys.argv[1:]
session = str(uuid.uuid4())  # names this login until the server names the session
last, streams, calls = {}, {}, {}  # (seq, id) by channel, (text, next index) by stream, open calls

async def call(socket, method, **params):
    calls[id := str(uuid.uuid4())] = response = asyncio.get_running_loop().create_future()
    await socket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    return await response

async def connect(socket):
    global session
    resume = [dict(channelType=t, channelId=c, lastSeq=s, lastId=i) for (t, c), (s, i) in last.items()]
    result = await call(socket, "connect", protocol=1, uid=uid, token=token, session=session, resume=resume)
    session = result["sessionId"]
    for channel, point in zip(list(last), result["resume"]):  # a lower headSeq: forked history
        last[channel] = min(last[channel][0], point["headSeq"]), last[channel][1]
    if not last:  # at the first connect
        await call(socket, "send", channelType=2, channelId=group, payload={"type": 1, "content": "hello"})

def handle(method, params):  # returns True if a stream has ended
    channel, no = (params.get("channelType"), params.get("channelId")), params.get("clientMsgNo")
    if method == "message":
        content = json.loads(base64.b64decode(params["payload"])).get("content")
        print(f"{params['fromUid']}: {content}", flush=True)
        if params["messageSeq"] > 0: last[channel] = params["messageSeq"], params["messageId"]
        if "stream" in params: streams[channel, no] = content, params["stream"]["nextIndex"]
    elif method == "messages":  # missed messages
        for message in params["messages"]: handle("message", message)
        last[channel] = params["throughSeq"], last[channel][1]
    elif method == "stream":  # the whole state of a stream, which may have ended meanwhile
        streams[channel, no] = params["text"], params["stream"]["nextIndex"]
        print(f"{params['fromUid']} writes: {params['text']}", flush=True)
    elif method == "event" and "stream" in params:
        (text, next_index), position = streams[channel, no], params["stream"]
        if params["type"] == "___TextMessageContent" and position["index"] == next_index:
            text += params["data"]
            print(f"{params['fromUid']} writes: {text}", flush=True)
        streams[channel, no] = text, position["nextIndex"]
    return method in ("stream", "event") and params.get("stream", {}).get("state", "active") != "active"

async def main():  # runs until a stream has ended, or the client must not reconnect
    frame = {}
    while frame.get("method") != "disconnect" or frame["params"]["code"] < 4200:
        try:
            async with websockets.connect(url) as socket:
                connecting = asyncio.create_task(connect(socket))
                async for text in socket:
                    if "error" in (frame := json.loads(text)): sys.exit(frame["error"]["message"])
                    if "id" in frame:
                        calls.pop(frame["id"]).set_result(frame["result"])
                    elif handle(frame["method"], frame["params"]):
                        return await connecting
        except (OSError, websockets.WebSocketException):
            print("cut off", flush=True)
        await asyncio.sleep(1)

asyncio.run(main())
