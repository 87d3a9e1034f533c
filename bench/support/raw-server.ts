// The raw server with which the broker is compared: the minimum of the same work on uWebSockets.js
// alone. It stores and checks nothing and has one fixed response. Runs in its own process, started
// by servers.ts as `raw-server.ts <kind> <response in hex>`, and prints its port.

import {
  App,
  type HttpResponse,
  type TemplatedApp,
  us_socket_local_port,
  type WebSocket,
} from "uWebSockets.js";

const TOPIC = "all";

const SERVERS = {
  /** Parses the JSON of a POST and responds with a fixed body. */
  http(app: TemplatedApp, answer: Uint8Array): void {
    app.post("/*", (response) => {
      response.onAborted(() => undefined);
      readJson(response, () =>
        response.writeHeader("Content-Type", "application/json").end(answer),
      );
    });
  },

  /** Replies to every frame with a fixed frame. */
  echo(app: TemplatedApp, answer: Uint8Array): void {
    app.ws("/*", {
      message: (socket) => {
        socket.send(answer, true);
      },
    });
  },

  /**
   * For each POST and for each frame that a socket sends, publishes a fixed frame through a topic
   * to all sockets except those of `/publish`.
   */
  fanout(app: TemplatedApp, answer: Uint8Array): void {
    app.ws<{ isPublisher: boolean }>("/*", {
      upgrade: (response, request, context) =>
        response.upgrade(
          { isPublisher: request.getUrl() === "/publish" },
          request.getHeader("sec-websocket-key"),
          request.getHeader("sec-websocket-protocol"),
          request.getHeader("sec-websocket-extensions"),
          context,
        ),
      open: (socket) => {
        if (!socket.getUserData().isPublisher) socket.subscribe(TOPIC);
      },
      message: () => {
        app.publish(TOPIC, answer, true);
      },
    });
    app.post("/*", (response) => {
      response.onAborted(() => undefined);
      readJson(response, () => {
        app.publish(TOPIC, answer, true);
        response.end("{}");
      });
    });
  },

  /** Sends a fixed frame to the one socket that the body names, for each POST. */
  stream(app: TemplatedApp, answer: Uint8Array): void {
    const viewers = new Map<string, WebSocket<{ name: string }>>();
    app.ws<{ name: string }>("/*", {
      upgrade: (response, request, context) =>
        response.upgrade(
          { name: request.getUrl().slice(1) },
          request.getHeader("sec-websocket-key"),
          request.getHeader("sec-websocket-protocol"),
          request.getHeader("sec-websocket-extensions"),
          context,
        ),
      open: (socket) => {
        viewers.set(socket.getUserData().name, socket);
      },
      close: (socket) => {
        viewers.delete(socket.getUserData().name);
      },
    });
    app.post("/*", (response) => {
      response.onAborted(() => undefined);
      readJson(response, (body) => {
        viewers.get(String(body.channel_id))?.send(answer, true);
        response.end("{}");
      });
    });
  },

  /**
   * Subscribes every socket to two topics, as each session of the connections bench belongs to two
   * groups. Replies to every frame with a fixed frame.
   */
  topics(app: TemplatedApp, answer: Uint8Array): void {
    let opened = 0;
    app.ws("/*", {
      open: (socket) => {
        socket.subscribe(`a${opened % 10}`);
        socket.subscribe(`b${Math.floor(opened / 10) % 10}`);
        opened += 1;
      },
      message: (socket) => {
        socket.send(answer, true);
      },
    });
  },
};

export type RawKind = keyof typeof SERVERS;

/** Reads the body, parses it as JSON and passes it to `done`. */
function readJson(
  response: HttpResponse,
  done: (body: Readonly<Record<string, unknown>>) => void,
): void {
  let body = Buffer.alloc(0);
  response.onData((chunk, isLast) => {
    if (!isLast || body.length > 0) body = Buffer.concat([body, Buffer.from(chunk)]);
    if (!isLast) return;
    const content = body.length > 0 ? body : Buffer.from(chunk);
    done(JSON.parse(content.toString()));
  });
}

const [kind, answer] = process.argv.slice(2);
const serve = Object.entries(SERVERS).find(([name]) => name === kind)?.[1];
if (serve === undefined) throw new Error(`unknown kind of raw server: ${kind}`);
const app = App();
serve(app, Buffer.from(answer ?? "", "hex"));
app.listen("127.0.0.1", 0, (socket) => {
  if (!socket) throw new Error("the raw server cannot listen on a port");
  process.stdout.write(`${us_socket_local_port(socket)}\n`);
});
