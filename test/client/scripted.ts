// A server whose replies and pushes the test controls, for behaviour that a real server does not
// show on demand: gaps, repetitions, silence, close codes. It uses the real wire format over
// sockets in memory. Frames arrive in order, each in a turn of its own.

import type { Test } from "tap";
import {
  type Client,
  type ConnectOptions,
  connect,
  type SocketConstructor,
  type SocketLike,
} from "../../src/client/index.ts";
import { createNativeProtocol } from "../../src/protocol/native/native.ts";
import type { ConnectionLimits, Operation, Push, Reply } from "../../src/protocol/protocol.ts";
import { Waiters } from "../support/waiters.ts";

type OperationOf<K extends Operation["kind"]> = Extract<Operation, { readonly kind: K }>;
type WithoutRef<T> = T extends { readonly ref: number } ? Omit<T, "ref"> : T;

const MAX_PAYLOAD_BYTES = 1_000_000;
const codec = createNativeProtocol({
  maxIdLength: 128,
  maxPayloadBytes: MAX_PAYLOAD_BYTES,
  maxResumePoints: 1000,
  maxPresenceUids: 1000,
  maxWatchedUids: 200,
  maxCommandAcks: 1000,
}).open();

/** The server's end of one connection. */
export class ScriptedSocket implements SocketLike {
  binaryType = "";
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onclose: SocketLike["onclose"] = null;
  onerror: SocketLike["onerror"] = null;
  /** All operations that the client has sent. */
  readonly received: Operation[] = [];
  /** True if the client has closed the connection. */
  isDropped = false;
  readonly #onChange: (operation?: Operation) => void;
  /** Frames that will arrive in one turn, `undefined` outside of `together`. */
  #together: unknown[] | undefined;

  constructor(onChange: (socket: ScriptedSocket, received?: Operation) => void) {
    this.#onChange = (operation) => onChange(this, operation);
    setImmediate(() => this.onopen?.({}));
  }

  send(data: Uint8Array): void {
    for (const operation of codec.decode(data, false)) {
      this.received.push(operation);
      if (operation.kind === "disconnect") this.end(4206);
      this.#onChange(operation);
    }
  }

  close(): void {
    this.isDropped = true;
    this.#onChange();
  }

  /** Sends the reply to an operation. */
  reply(to: Operation, reply: WithoutRef<Reply>): void {
    const full = { ...reply, ref: to.ref } as Reply; // spreading a union loses its discriminant
    this.bytes(codec.encodeReply(full));
  }

  /** Sends a push. */
  push(push: Push): void {
    this.bytes(codec.encodePush(push));
  }

  /** Sends any frame: bytes unchanged, a string as a text frame. */
  bytes(frame: Uint8Array | string): void {
    const data = typeof frame === "string" ? frame : frame.slice().buffer;
    if (this.#together !== undefined) this.#together.push(data);
    else setImmediate(() => this.onmessage?.({ data }));
  }

  /**
   * Calls `send`. All frames that it sends arrive in one turn, as if the network delivered them in
   * one packet.
   */
  together(send: () => void): void {
    const frames: unknown[] = [];
    this.#together = frames;
    send();
    this.#together = undefined;
    setImmediate(() => {
      for (const data of frames) this.onmessage?.({ data });
    });
  }

  /** Closes the connection with a code. 1006 means without a close handshake. */
  end(code: number): void {
    setImmediate(() => this.onclose?.({ code }));
  }

  /** Returns the operations of one kind that the client has sent. */
  all<K extends Operation["kind"]>(kind: K): readonly OperationOf<K>[] {
    // the filter compares the kind
    return this.received.filter((operation) => operation.kind === kind) as OperationOf<K>[];
  }
}

/** Handles an operation of the client. */
export type Script = (operation: Operation, socket: ScriptedSocket) => void;

/**
 * A server that calls its script for each operation. The test itself replies to the operations that
 * the script does not handle.
 */
export class ScriptedServer {
  readonly sockets: ScriptedSocket[] = [];
  readonly webSocket: SocketConstructor;
  readonly #waiters = new Waiters(60_000);

  constructor(script: Script = welcome) {
    const server = this;
    this.webSocket = class extends ScriptedSocket {
      constructor() {
        super((socket, operation) => {
          if (operation !== undefined) script(operation, socket);
          server.#waiters.check();
        });
        server.sockets.push(this);
        server.#waiters.check();
      }
    };
  }

  /** Waits for connection number `n`, counted from 0. */
  async socket(n = 0): Promise<ScriptedSocket> {
    await this.until(`connection ${n}`, () => this.sockets.length > n);
    return this.sockets[n] as ScriptedSocket; // the connection exists after `until`
  }

  /** Waits for operation number `n` of a kind on a connection, counted from 0. */
  async received<K extends Operation["kind"]>(
    kind: K,
    n = 0,
    connection = 0,
  ): Promise<OperationOf<K>> {
    const socket = await this.socket(connection);
    const description = `${kind} ${n} on connection ${connection}`;
    await this.until(description, () => socket.all(kind).length > n);
    return socket.all(kind)[n] as OperationOf<K>; // the operation exists after `until`
  }

  /** Waits until the condition holds. The error of a timeout contains `description`. */
  async until(description: string, condition: () => boolean): Promise<void> {
    // the condition may depend on the client's handlers
    const timer = setInterval(() => this.#waiters.check(), 5);
    try {
      await this.#waiters.until(description, condition);
    } finally {
      clearInterval(timer);
    }
  }
}

/** Opens every session, answers pings and ignores all other operations. */
export const welcome: Script = (operation, socket) => {
  if (operation.kind === "connect") acknowledge(operation, socket);
  if (operation.kind === "ping") socket.reply(operation, { kind: "pong", serverTimeMs: 1 });
};

/**
 * Replies to a CONNECT or REFRESH with a CONNACK. `heads` contains the newest seqs, by channel id,
 * of the channels whose newest seq differs from the client's position.
 */
export function acknowledge(
  connect: OperationOf<"connect"> | OperationOf<"refresh">,
  socket: ScriptedSocket,
  {
    heads = {},
    status = "ok",
    limits = {},
    sessionId = "s",
    newestId = 1000,
    expiresInS,
  }: {
    readonly heads?: Readonly<Record<string, number>>;
    readonly status?: "ok" | "denied";
    readonly limits?: Partial<ConnectionLimits>;
    readonly sessionId?: string;
    readonly newestId?: number;
    readonly expiresInS?: number;
  } = {},
): void {
  socket.reply(connect, {
    kind: "connack",
    version: 1,
    sessionId,
    nodeId: "n",
    serverTimeMs: 1000,
    limits: {
      maxFrameBytes: 131_072,
      maxPayloadBytes: 65_536,
      idleTimeoutS: 120,
      maxFramesPerSecond: 0,
      ...limits,
    },
    resume: (connect.kind === "connect" ? connect.resume : []).map(({ channel, lastSeq }) => ({
      channel,
      status,
      headSeq: heads[channel.id] ?? lastSeq,
    })),
    newestId,
    expiresInS,
  });
}

/** Connects a client to the server. The client is closed at the end of the test. */
export function connectTo(
  t: Test,
  server: ScriptedServer,
  options: Partial<ConnectOptions> = {},
): Client {
  const client = connect({
    url: "ws://nowhere",
    uid: "me",
    reconnect: { minMs: 1, maxMs: 5 },
    webSocket: server.webSocket,
    ...options,
  });
  t.teardown(() => client.close());
  return client;
}
