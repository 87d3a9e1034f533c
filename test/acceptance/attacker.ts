// Sends frames to a broker over a real socket and collects how the broker responds: the codes of
// its ERROR frames and how the connection ends. An attacker opens a new socket after the broker has
// closed the previous one.

import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL } from "../../src/protocol/native/ops.ts";
import { BROKER_CODES, type Ending, RawSocket } from "./raw-socket.ts";

export interface Identity {
  readonly uid: string;
  readonly token: string;
}

/** How a connection ended, or `alive` if it is still open. */
export type Outcome = Ending | "alive";

/** Ref of the ping that `sendAll` sends after its frames. No hostile frame uses this ref. */
const LAST_REF = 0xffff_fff0;

export class Attacker {
  /** Number of ERROR frames received, by error code. */
  readonly errors = new Map<string, number>();
  readonly #port: number;
  /**
   * User as whom the attacker logs in before it sends hostile frames. `undefined` if it does not
   * log in.
   */
  readonly #identity: Identity | undefined;
  #socket: RawSocket | undefined;

  constructor(port: number, identity?: Identity) {
    this.#port = port;
    this.#identity = identity;
  }

  /** Sends the frames and then a ping. Waits for the pong or for the end of the connection. */
  async sendAll(frames: Iterable<Uint8Array>): Promise<Outcome> {
    const socket = await this.#open();
    for (const frame of frames) socket.send(frame);
    socket.send(encodeOperation({ kind: "ping", ref: LAST_REF }));
    const isAlive = await this.#readPong(socket);
    if (isAlive) return "alive";
    this.#socket = undefined;
    return socket.ended();
  }

  stop(): void {
    this.#socket?.kill();
    this.#socket = undefined;
  }

  async #readPong(socket: RawSocket): Promise<boolean> {
    for (;;) {
      const bytes = await socket.frame();
      if (bytes === undefined) return false;
      const frame = decodeServerFrame(bytes, this.#identity?.uid ?? "bob");
      if (frame.kind === "pong" && frame.ref === LAST_REF) return true;
      if (frame.kind !== "error") continue;
      this.errors.set(frame.code, (this.errors.get(frame.code) ?? 0) + 1);
    }
  }

  async #open(): Promise<RawSocket> {
    if (this.#socket !== undefined && !this.#socket.isOver) return this.#socket;
    const rawSocket = new RawSocket(this.#port);
    const socket = await rawSocket.upgraded(NATIVE_SUBPROTOCOL); // keeps random bytes from selecting another protocol
    this.#socket = socket;
    if (this.#identity === undefined) return socket;
    socket.send(connectFrame(this.#identity));
    const response = await socket.frame();
    if (response === undefined) throw new Error("the broker closed the connection during login");
    const { kind } = decodeServerFrame(response, this.#identity.uid);
    if (kind !== "connack") throw new Error(`expected a CONNACK but received ${kind}`);
    return socket;
  }
}

/** Returns a valid CONNECT frame. */
export function connectFrame({ uid, token }: Identity): Uint8Array {
  return encodeOperation({
    kind: "connect",
    sessionName: "",
    ref: 1,
    version: 1,
    uid,
    token,
    flag: 0,
    deviceId: "",
    level: undefined,
    resume: [],
  });
}

/** Returns true if a broker is allowed to end a hostile connection this way. */
export function isAllowedEnding(outcome: Outcome): boolean {
  return outcome === "alive" || BROKER_CODES.has(outcome);
}
