// Well-behaved users, and how long the node makes them wait. One user sends messages to a group,
// another receives them, and others connect and disconnect. All act at a fixed rate, however long a
// reply takes.

import { setTimeout } from "node:timers/promises";
import { WebSocket } from "ws";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import { decodeServerFrame, type ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL, NATIVE_VERSION } from "../../src/protocol/native/ops.ts";
import { TOKEN } from "./backend.ts";
import { PAYLOAD } from "./frames.ts";
import type { Latency } from "./load.ts";

/** Group of the sender and the receiver. */
export const GOOD_GROUP = "good";
export const SENDER = "good-sender";
export const RECEIVER = "good-receiver";
/** Users who connect in turn, so that each user connects rarely. */
export const VISITORS: readonly string[] = Array.from({ length: 50 }, (_, at) => `visitor-${at}`);

const SEND_EVERY_MS = 10;
const CONNECT_EVERY_MS = 20;
/** Maximum wait. A lost message or a failed connect counts as having taken this long. */
const MAX_WAIT_MS = 10_000;

export interface Waiting {
  /** Time from the SEND of a message until it reaches the receiver. */
  readonly messages: Latency;
  /** Time from the opening of a connection until its CONNACK. */
  readonly connects: Latency;
  /** Number of messages that were sent. */
  readonly count: number;
  /** Codes of the errors with which messages were refused. */
  readonly refusals: readonly string[];
}

export class GoodUsers {
  readonly #ports: readonly number[];
  readonly #sender: WebSocket;
  readonly #receiver: WebSocket;
  /** Time at which each message was sent, by its `clientMsgNo`. */
  readonly #pending = new Map<string, number>();
  #waitsMs: number[] = [];
  #refusals: string[] = [];
  #sent = 0;
  #visits = 0;

  private constructor(ports: readonly number[], sender: WebSocket, receiver: WebSocket) {
    this.#ports = ports;
    this.#sender = sender;
    this.#receiver = receiver;
    sender.on("message", (data: Buffer) => this.#replied(decodeServerFrame(data, SENDER)));
    receiver.on("message", (data: Buffer) => this.#received(decodeServerFrame(data, RECEIVER)));
  }

  /** Connects the sender to the first node and the receiver to the last node. */
  static async connect(ports: readonly number[]): Promise<GoodUsers> {
    const sender = await logIn(ports[0] ?? 0, SENDER);
    const receiver = await logIn(ports.at(-1) ?? 0, RECEIVER);
    return new GoodUsers(ports, sender, receiver);
  }

  close(): void {
    this.#sender.close();
    this.#receiver.close();
  }

  async measure(seconds: number): Promise<Waiting> {
    const endMs = performance.now() + seconds * 1000;
    this.#waitsMs = [];
    this.#refusals = [];
    const [connectsMs] = await Promise.all([this.#visit(endMs), this.#send(endMs)]);
    const lastMs = performance.now() + MAX_WAIT_MS;
    while (this.#pending.size > 0 && performance.now() < lastMs) await setTimeout(5);
    const lost = Array.from(this.#pending, () => MAX_WAIT_MS);
    this.#pending.clear();
    const waitsMs = [...this.#waitsMs, ...lost];
    return {
      messages: latencyOf(waitsMs),
      connects: latencyOf(connectsMs),
      count: waitsMs.length,
      refusals: this.#refusals,
    };
  }

  async #send(endMs: number): Promise<void> {
    for (let dueMs = performance.now(); dueMs < endMs; dueMs += SEND_EVERY_MS) {
      await setTimeout(Math.max(0, dueMs - performance.now()));
      const clientMsgNo = `good-${this.#sent++}`;
      this.#pending.set(clientMsgNo, performance.now());
      this.#sender.send(
        encodeOperation({
          ...({ kind: "send", ref: 1, clientMsgNo, expireS: 0, payload: PAYLOAD } as const),
          ...{ streamNo: undefined, tagKey: undefined },
          channel: { type: GROUP_CHANNEL, id: GOOD_GROUP },
          header: { noPersist: false, redDot: true, syncOnce: false },
        }),
      );
    }
  }

  #replied(frame: ServerFrame): void {
    if (frame.kind === "error") this.#refusals.push(frame.code);
  }

  #received(frame: ServerFrame): void {
    if (frame.kind !== "message") return;
    const { clientMsgNo } = frame.message;
    const sentMs = this.#pending.get(clientMsgNo);
    if (sentMs === undefined) return;
    this.#pending.delete(clientMsgNo);
    this.#waitsMs.push(performance.now() - sentMs);
  }

  async #visit(endMs: number): Promise<readonly number[]> {
    const visits: Promise<number>[] = [];
    for (let dueMs = performance.now(); dueMs < endMs; dueMs += CONNECT_EVERY_MS) {
      await setTimeout(Math.max(0, dueMs - performance.now()));
      const visit = this.#visits++;
      const uid = VISITORS[visit % VISITORS.length] ?? "";
      visits.push(connectMs(this.#ports[visit % this.#ports.length] ?? 0, uid));
    }
    return Promise.all(visits);
  }
}

/** Resolves with the time that a connect takes, `MAX_WAIT_MS` if it fails. */
async function connectMs(port: number, uid: string): Promise<number> {
  const startMs = performance.now();
  try {
    const socket = await logIn(port, uid);
    const passedMs = performance.now() - startMs;
    socket.close();
    return passedMs;
  } catch {
    return MAX_WAIT_MS;
  }
}

function logIn(port: number, uid: string): Promise<WebSocket> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}`, NATIVE_SUBPROTOCOL, {
    perMessageDeflate: false,
  });
  const connect = encodeOperation({
    ...({ kind: "connect", ref: 1, version: NATIVE_VERSION, uid, token: TOKEN, flag: 0 } as const),
    ...{ deviceId: "", level: undefined, sessionName: "", resume: [] },
  });
  return new Promise((resolve, reject) => {
    const timer = globalThis.setTimeout(() => socket.terminate(), MAX_WAIT_MS);
    socket.on("open", () => socket.send(connect));
    socket.on("error", reject);
    socket.on("close", (code) => reject(new Error(`${uid} was closed with ${code}`)));
    socket.once("message", (data: Buffer) => {
      clearTimeout(timer);
      const frame = decodeServerFrame(data, uid);
      if (frame.kind === "connack") resolve(socket);
      else reject(new Error(`${uid} received ${frame.kind} instead of a CONNACK`));
    });
  });
}

/** Returns the percentiles in microseconds. */
function latencyOf(waitsMs: readonly number[]): Latency {
  const sorted = waitsMs.toSorted((a, b) => a - b);
  const at = (share: number) =>
    1000 * (sorted[Math.floor((sorted.length - 1) * share)] ?? Number.NaN);
  return { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1) };
}
