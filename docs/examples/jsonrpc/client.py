"""Sends, prints what comes, resumes: python3 client.py ws://127.0.0.1:5200 bob token-bob team"""
import asyncio, base64, json, sys, uuid, websockets

url, uid, token, group = sys.argv[1:]
session = str(uuid.uuid4())  # a name for this login until the server gives one
last, streams, calls = {}, {}, {}  # (seq, id) of channels, (text, next index) of streams, open calls

async def call(socket, method, **params):
    calls[id := str(uuid.uuid4())] = answered = asyncio.get_running_loop().create_future()
    await socket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    return await answered

async def connect(socket):
    global session
    resume = [dict(channelType=t, channelId=c, lastSeq=s, lastId=i) for (t, c), (s, i) in last.items()]
    answer = await call(socket, "connect", protocol=1, uid=uid, token=token, session=session, resume=resume)
    session = answer["sessionId"]
    for channel, point in zip(list(last), answer["resume"]):  # a head below ours: a forked history
        last[channel] = min(last[channel][0], point["headSeq"]), last[channel][1]
    if not last:  # the first time
        await call(socket, "send", channelType=2, channelId=group, payload={"type": 1, "content": "hello"})

def take(method, params):  # True: a stream has ended
    channel, no = (params.get("channelType"), params.get("channelId")), params.get("clientMsgNo")
    if method == "message":
        content = json.loads(base64.b64decode(params["payload"])).get("content")
        print(f"{params['fromUid']}: {content}", flush=True)
        if params["messageSeq"] > 0: last[channel] = params["messageSeq"], params["messageId"]
        if "stream" in params:
            streams[channel, no] = content, params["stream"]["nextIndex"]
    elif method == "messages":  # missed ones
        for message in params["messages"]: take("message", message)
        last[channel] = params["throughSeq"], last[channel][1]
    elif method == "stream":  # an active one, as it stands
        streams[channel, no] = params["text"], params["stream"]["nextIndex"]
    elif method == "event" and "stream" in params:
        (text, next_index), place = streams[channel, no], params["stream"]
        if params["type"] == "___TextMessageContent" and place["index"] == next_index:
            text += params["data"]
            print(f"{params['fromUid']} writes: {text}", flush=True)
        streams[channel, no] = text, place["nextIndex"]
        return place["state"] != "active"

async def main():  # until a stream has ended, or the server says that the client must not come back
    frame = {}
    while frame.get("method") != "disconnect" or frame["params"]["code"] < 4200:
        try:
            async with websockets.connect(url) as socket:
                connecting = asyncio.create_task(connect(socket))
                async for text in socket:
                    if "error" in (frame := json.loads(text)): sys.exit(frame["error"]["message"])
                    if "id" in frame:
                        calls.pop(frame["id"]).set_result(frame["result"])
                    elif take(frame["method"], frame["params"]):
                        return await connecting
        except (OSError, websockets.WebSocketException):
            print("cut off", flush=True)
        await asyncio.sleep(1)

asyncio.run(main())
