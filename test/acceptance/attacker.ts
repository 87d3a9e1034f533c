// Throws frames at a broker over real sockets and judges what comes back: only errors of the
// broker's table, only its own close codes. State: the socket while it lasts; each attacker opens a
// new one when the broker has closed the last.

import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL } from "../../src/protocol/native/ops.ts";
import { type Ending, OUR_CODES, RawSocket } from "./raw-socket.ts";

export interface Identity {
  readonly uid: string;
  readonly token: string;
}

/** `alive`: the connection goes on. */
export type Outcome = Ending | "alive";

/** After each volley; no request of a volley has it. */
const LAST_REF = 0xffff_fff0;

export class Attacker {
  /** Codes of ERROR frames it got, and how often. */
  readonly errors = new Map<string, number>();
  readonly #port: number;
  /** Whom it connects as before it attacks; undefined: it attacks at once. */
  readonly #identity: Identity | undefined;
  #socket: RawSocket | undefined;

  constructor(port: number, identity?: Identity) {
    this.#port = port;
    this.#identity = identity;
  }

  /** Sends the frames, then a ping, and reads until that is answered or the connection is over. */
  async throwAll(frames: Iterable<Uint8Array>): Promise<Outcome> {
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
    const made = new RawSocket(this.#port);
    const socket = await made.upgraded(NATIVE_SUBPROTOCOL); // random bytes may begin another protocol
    this.#socket = socket;
    if (this.#identity === undefined) return socket;
    socket.send(connectFrame(this.#identity));
    const answer = await socket.frame();
    if (answer === undefined) throw new Error("the broker let nobody in");
    const { kind } = decodeServerFrame(answer, this.#identity.uid);
    if (kind !== "connack") throw new Error(`${kind} in place of a connack`);
    return socket;
  }
}

/** A right CONNECT. */
export function connectFrame({ uid, token }: Identity): Uint8Array {
  return encodeOperation({
    kind: "connect",
    session: "",
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

/** Whether a broker may end a hostile connection so. */
export function isSoundEnding(outcome: Outcome): boolean {
  return outcome === "alive" || OUR_CODES.has(outcome);
}
