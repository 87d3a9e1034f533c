// A stream that is played from a script. Its producer sends the script event by event, and the
// actions of the viewers run at chosen positions. Each event has its own id and is sent until it is
// answered. Some events are sent again later.

import type { ChannelRef } from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";
import type { RestartableBroker } from "./restartable-broker.ts";
import { differenceOf, pictureOf, pictureOfJson, type ScriptEvent } from "./stream-picture.ts";

/** An action that runs when `at` events were acknowledged. */
export interface Cue {
  readonly at: number;
  run(): void;
}

/** Calls of the broker that a producer makes. */
type Producing = Pick<RestartableBroker, "call" | "ok">;

export interface ScriptedStreamOptions<S extends Producing = RestartableBroker> {
  readonly broker: S;
  readonly random: Random;
  /** The channel as the producer addresses it. */
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly script: readonly ScriptEvent[];
}

export class ScriptedStream<S extends Producing = RestartableBroker> {
  readonly options: ScriptedStreamOptions<S>;
  /** Number of events that were answered with 200. */
  acknowledged = 0;
  #cues: Cue[] = [];
  #isEnding = false;

  constructor(options: ScriptedStreamOptions<S>) {
    this.options = options;
  }

  get length(): number {
    return this.options.script.length;
  }

  /** True if the sending of the last event has begun. */
  get isEnding(): boolean {
    return this.#isEnding;
  }

  cue(at: number, run: () => void): void {
    this.#cues.push({ at, run });
  }

  /** Sends the script from its first event to its last. */
  async play(): Promise<void> {
    this.#cues.sort((a, b) => a.at - b.at);
    const { random, script } = this.options;
    for (const [index, event] of script.entries()) {
      this.#runCues(index);
      this.#isEnding = index === script.length - 1;
      await this.#post(index, event);
      this.acknowledged = index + 1;
      if (random.below(200) === 0) await this.#repeat(random.below(index + 1));
    }
    this.#runCues(Number.POSITIVE_INFINITY);
  }

  /**
   * Compares GET /stream with the acknowledged events. Returns the difference, or `undefined` if
   * the stream contains exactly these events and at most one event that was not acknowledged yet.
   */
  async storedDifference(): Promise<string | undefined> {
    const { acknowledged } = this;
    if (acknowledged === 0) return undefined;
    const { status, body } = await this.options.broker.call(this.path);
    if (status !== 200) return `${status} ${body.code}`;
    const stored = pictureOfJson(body);
    if (stored.nextIndex < acknowledged || stored.nextIndex > acknowledged + 1)
      return `${stored.nextIndex} events are stored, ${acknowledged} were acknowledged`;
    return differenceOf(stored, pictureOf(this.options.script, stored.nextIndex));
  }

  /** Path of GET /stream. */
  get path(): string {
    const { channel, clientMsgNo, fromUid } = this.options;
    const uid = channel.type === 1 ? `?uid=${fromUid}` : "";
    return `/stream/${channel.type}/${channel.id}/${clientMsgNo}${uid}`;
  }

  async #post(index: number, { type, data }: ScriptEvent): Promise<void> {
    const { broker, channel, fromUid, clientMsgNo } = this.options;
    const body = await broker.ok("/event", {
      client_msg_no: clientMsgNo,
      channel_id: channel.id,
      channel_type: channel.type,
      from_uid: fromUid,
      event: { type, data, id: `e-${index}` },
    });
    const state = this.isEnding ? "closed" : "active";
    if (body.status !== "ok" || body.stream?.state !== state)
      throw new Error(`event ${index}: ${JSON.stringify(body)}`);
  }

  /**
   * Sends an acknowledged event again, which is answered as before and has no effect. A start is
   * not repeated at the end, because a start is refused after the end of the stream.
   */
  async #repeat(index: number): Promise<void> {
    const event = this.options.script[index];
    if (this.isEnding && index === 0) return;
    if (event !== undefined && index < this.length - 1) await this.#post(index, event);
  }

  #runCues(index: number): void {
    while ((this.#cues[0]?.at ?? Number.NaN) <= index) this.#cues.shift()?.run();
  }
}
