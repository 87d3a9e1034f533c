// A server that a test plays by hand, for what a real one does not do on demand: gaps, repeats,
// silence, close codes. It speaks the real wire format; the sockets it gives out are in memory.
// Frames arrive in order, each in a turn of its own.

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

const MANY = 1_000_000;
const codec = createNativeProtocol({
  maxIdLength: 128,
  maxPayloadBytes: MANY,
  maxResumePoints: 1000,
  maxPresenceUids: 1000,
  maxWatchedUids: 200,
  maxCommandAcks: 1000,
}).open();

/** One connection, as the server has it. */
export class ScriptedSocket implements SocketLike {
  binaryType = "";
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onclose: SocketLike["onclose"] = null;
  onerror: SocketLike["onerror"] = null;
  /** Everything the client said. */
  readonly heard: Operation[] = [];
  /** The client let go of it. */
  isDropped = false;
  readonly #changed: (operation?: Operation) => void;
  /** Frames that are to arrive in one turn. */
  #together: unknown[] | undefined;

  constructor(changed: (socket: ScriptedSocket, heard?: Operation) => void) {
    this.#changed = (operation) => changed(this, operation);
    setImmediate(() => this.onopen?.({}));
  }

  send(data: Uint8Array): void {
    for (const operation of codec.decode(data, false)) {
      this.heard.push(operation);
      if (operation.kind === "disconnect") this.end(4206);
      this.#changed(operation);
    }
  }

  close(): void {
    this.isDropped = true;
    this.#changed();
  }

  /** Answers the last operation of its kind. */
  reply(to: Operation, reply: WithoutRef<Reply>): void {
    const full = { ...reply, ref: to.ref } as Reply; // spreading a union loses which member it was
    this.bytes(codec.encodeReply(full));
  }

  push(push: Push): void {
    this.bytes(codec.encodePush(push));
  }

  /** Any frame: bytes as they are, a string as a text frame. */
  bytes(frame: Uint8Array | string): void {
    const data = typeof frame === "string" ? frame : frame.slice().buffer;
    if (this.#together !== undefined) this.#together.push(data);
    else setImmediate(() => this.onmessage?.({ data }));
  }

  /**
   * What `send` sends arrives in one turn, as it does when the network delivers several frames in
   * one piece.
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

  /** The connection ends; 1006: without a word. */
  end(code: number): void {
    setImmediate(() => this.onclose?.({ code }));
  }

  /** The operations of one kind so far. */
  all<K extends Operation["kind"]>(kind: K): readonly OperationOf<K>[] {
    return this.heard.filter((one) => one.kind === kind) as OperationOf<K>[]; // just compared
  }
}

export type Script = (operation: Operation, socket: ScriptedSocket) => void;

export class ScriptedServer {
  readonly sockets: ScriptedSocket[] = [];
  readonly webSocket: SocketConstructor;
  readonly #waiters = new Waiters(5000);

  /** `script` is asked for every operation; what it does not answer waits for the test. */
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

  /** Connection number `n`, from 0, once it is there. */
  async socket(n = 0): Promise<ScriptedSocket> {
    await this.until(`connection ${n}`, () => this.sockets.length > n);
    return this.sockets[n] as ScriptedSocket; // just counted
  }

  /** Operation number `n` of its kind on a connection, once it is there. */
  async heard<K extends Operation["kind"]>(
    kind: K,
    n = 0,
    connection = 0,
  ): Promise<OperationOf<K>> {
    const socket = await this.socket(connection);
    const what = `${kind} ${n} on connection ${connection}`;
    await this.until(what, () => socket.all(kind).length > n);
    return socket.all(kind)[n] as OperationOf<K>; // just counted
  }

  async until(what: string, holds: () => boolean): Promise<void> {
    const timer = setInterval(() => this.#waiters.check(), 5); // what the client's handlers saw
    try {
      await this.#waiters.until(what, holds);
    } finally {
      clearInterval(timer);
    }
  }
}

/** Opens every session, takes every message, and says nothing else. */
export const welcome: Script = (operation, socket) => {
  if (operation.kind === "connect") acknowledge(operation, socket);
  if (operation.kind === "ping") socket.reply(operation, { kind: "pong", serverTimeMs: 1 });
};

/** The connack; `heads` by channel id, where a channel has more or less than the client says. */
export function acknowledge(
  connect: OperationOf<"connect">,
  socket: ScriptedSocket,
  {
    heads = {},
    status = "ok",
    limits = {},
    sessionId = "s",
  }: {
    readonly heads?: Readonly<Record<string, number>>;
    readonly status?: "ok" | "denied";
    readonly limits?: Partial<ConnectionLimits>;
    readonly sessionId?: string;
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
    resume: connect.resume.map(({ channel, lastSeq }) => ({
      channel,
      status,
      headSeq: heads[channel.id] ?? lastSeq,
    })),
  });
}

/** A client of the scripted server that is closed with the test. */
export function play(
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
