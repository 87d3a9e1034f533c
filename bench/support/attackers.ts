// The attackers' connections and HTTP calls. A connection is opened again as soon as it is closed.
// A session that sends frames sends them as fast as the node reads. Owns the sockets of one attack.

import { Agent, request } from "node:http";
import { connect, type Socket } from "node:net";
import { TOKEN } from "./backend.ts";
import { clientFrame, connectFrame, NATIVE_UPGRADE, upgradeRequest } from "./frames.ts";

export interface Target {
  /** Client ports of the nodes. Attackers use them in turn. */
  readonly clientPorts: readonly number[];
  readonly apiPort: number;
}

export interface AttackCounts {
  connections: number;
  sentBytes: number;
  receivedBytes: number;
}

/** First bytes of a session: the upgrade, and the frame that logs in. */
export interface Login {
  readonly upgrade: Uint8Array;
  readonly frame: Uint8Array;
}

const VOLLEY_BYTES = 32_768;
const MAX_VOLLEY = 100;
/** Time after which a connect that failed is repeated. */
const RETRY_MS = 5;

export class Attackers {
  readonly counts: AttackCounts = { connections: 0, sentBytes: 0, receivedBytes: 0 };
  readonly target: Target;
  readonly #sockets = new Set<Socket>();
  readonly #agent = new Agent({ keepAlive: true });
  #isOver = false;
  #opened = 0;

  constructor(target: Target) {
    this.target = target;
  }

  stop(): void {
    this.#isOver = true;
    this.#agent.destroy();
    for (const socket of this.#sockets) socket.destroy();
  }

  nextClientPort(): number {
    const { clientPorts } = this.target;
    return clientPorts[this.#opened++ % clientPorts.length] ?? 0;
  }

  /** Keeps a connection open. `begin` is called each time it is opened. */
  keepOpen(
    { port, address = "127.0.0.1" }: { readonly port: number; readonly address?: string },
    begin: (socket: Socket) => void,
  ): void {
    if (this.#isOver) return;
    this.counts.connections += 1;
    const socket = connect({ port, host: "127.0.0.1", localAddress: address, noDelay: true });
    this.#sockets.add(socket);
    let isOpen = false;
    socket.on("connect", () => {
      isOpen = true;
      begin(socket);
    });
    socket.on("data", (data) => {
      this.counts.receivedBytes += data.length;
    });
    socket.on("error", () => undefined); // a `close` event always follows
    socket.on("end", () => socket.destroy());
    socket.on("close", () => {
      this.#sockets.delete(socket);
      this.counts.sentBytes += socket.bytesWritten;
      const again = () => this.keepOpen({ port, address }, begin);
      if (isOpen) setImmediate(again);
      else setTimeout(again, RETRY_MS);
    });
  }

  /** Keeps a connection from `address` open, and sends `frame` after each upgrade. */
  stranger(address: string, { upgrade, frame }: Login): void {
    this.keepOpen({ port: this.nextClientPort(), address }, (socket) => {
      socket.write(upgrade);
      socket.once("data", () => socket.write(frame));
    });
  }

  /**
   * Keeps a session open that sends the next volley when the previous one has been written. If
   * `nextVolley` is `undefined`, the session only reads.
   */
  session({ upgrade, frame }: Login, nextVolley: (() => Uint8Array) | undefined): void {
    this.keepOpen({ port: this.nextClientPort() }, (socket) => {
      socket.write(upgrade);
      socket.once("data", () => {
        socket.write(frame);
        // The next data is the CONNACK.
        if (nextVolley !== undefined) socket.once("data", () => repeat(socket, nextVolley));
      });
    });
  }

  /** Keeps a session open that reads nothing after the login. */
  deafSession({ upgrade, frame }: Login): void {
    this.keepOpen({ port: this.nextClientPort() }, (socket) => {
      socket.write(upgrade);
      socket.once("data", () => {
        socket.write(frame);
        socket.once("data", () => socket.pause());
      });
    });
  }

  /** Repeats an HTTP call and reads each response, whatever its status. */
  call(port: number, path: string, options: { body?: string; headers?: Record<string, string> }) {
    if (this.#isOver) return;
    const { body, headers = {} } = options;
    const method = body === undefined ? "GET" : "POST";
    const type = body === undefined ? {} : { "Content-Type": "application/json" };
    const again = () => setImmediate(() => this.call(port, path, options));
    const call = request(
      {
        host: "127.0.0.1",
        port,
        path,
        method,
        agent: this.#agent,
        headers: { ...type, ...headers },
      },
      (response) => {
        response.on("data", (data: Buffer) => {
          this.counts.receivedBytes += data.length;
        });
        response.on("close", again);
      },
    );
    call.on("error", again);
    this.counts.sentBytes += path.length + (body?.length ?? 0);
    call.end(body);
  }
}

export const nativeLogin = (uid: string, token = TOKEN): Login => ({
  upgrade: NATIVE_UPGRADE,
  frame: connectFrame(uid, token),
});

export const jsonLogin = (uid: string): Login => {
  const params = { protocol: 1, uid, token: TOKEN, deviceFlag: 0 };
  const connect = { jsonrpc: "2.0", id: "1", method: "connect", params };
  return { upgrade: upgradeRequest(), frame: clientFrame(JSON.stringify(connect)) };
};

/** Returns 1 to `MAX_VOLLEY` copies of the frame for one write, about `VOLLEY_BYTES` bytes. */
export function volley(frame: Uint8Array): Uint8Array {
  const count = Math.max(1, Math.min(MAX_VOLLEY, Math.floor(VOLLEY_BYTES / frame.length)));
  return Buffer.concat(Array<Uint8Array>(count).fill(frame));
}

function repeat(socket: Socket, next: () => Uint8Array): void {
  if (socket.destroyed) return;
  socket.write(next(), () => setImmediate(repeat, socket, next));
}
