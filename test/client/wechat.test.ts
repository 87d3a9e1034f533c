// The adapter for WeChat mini programs. The test's `wx` behaves as the documentation of
// `wx.connectSocket` says, over real sockets to a real broker.

import { WebSocket } from "ws";
import { connect, group } from "../../src/client/index.ts";
import { type WechatApi, wechatSocket } from "../../src/client/wechat.ts";
import { spawnBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { registerTalkers } from "./talk.ts";

/** Sockets that `wx` has opened. */
const sockets: WebSocket[] = [];

const wx: WechatApi = {
  connectSocket({ url, protocols, fail }) {
    const socket = new WebSocket(url, protocols);
    socket.binaryType = "arraybuffer";
    sockets.push(socket);
    socket.onerror = ({ message }) => fail({ errMsg: `connectSocket:fail ${message}` });
    return {
      send: ({ data }) => socket.send(data),
      close: ({ code }) => socket.close(code),
      onOpen: (listener) => socket.on("open", listener),
      onMessage: (listener) => {
        socket.onmessage = ({ data }) => listener({ data });
      },
      onClose: (listener) => socket.on("close", (code) => listener({ code })),
      onError: () => undefined, // a refused connection is reported to `fail`
    };
  },
};

t.test(
  "a WeChat mini program sends and receives messages, and reconnects after a lost connection",
  async (t) => {
    const broker = await spawnBroker(t);
    await registerTalkers(broker);
    const url = `ws://127.0.0.1:${broker.clientPort}`;
    const options = { url, reconnect: { minMs: 10 }, webSocket: wechatSocket(wx) };
    const amy = connect({ ...options, uid: "amy", token: "amy-token" });
    const ben = connect({ ...options, uid: "ben", token: "ben-token" });
    const received: unknown[] = [];
    const both = new Promise<void>((resolve) =>
      ben.on("message", ({ content }) => {
        if (received.push(content?.content) === 2) resolve();
      }),
    );
    await Promise.all([amy.ready(), ben.ready()]);
    await amy.send(group("talk"), "你好");
    for (const socket of sockets) socket.terminate();
    await amy.send(group("talk"), "again");
    await both;
    t.same(received, ["你好", "again"]);
    await Promise.all([amy.close(), ben.close()]);
  },
);

t.test("a connection that `wx` cannot open is reported as an error event at once", async (t) => {
  const client = connect({
    ...{ url: "ws://127.0.0.1:1", uid: "amy", webSocket: wechatSocket(wx) },
    ...{ timeouts: { connectMs: 600_000 }, reconnect: { minMs: 600_000 } },
  });
  t.teardown(() => client.close());
  const error = await new Promise<Error>((resolve) => client.on("error", resolve));
  t.match(error.message, /connectSocket:fail .*ECONNREFUSED/);
});
