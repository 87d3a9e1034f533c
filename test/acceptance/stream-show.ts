// One stream of the late-join test: its producer plays a script event by event, and what the
// audience is to do happens at its place in the script. State: how far it was acknowledged. Every
// event has an id of its own and is sent until it is answered, some of them again.

import type { ChannelRef } from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";
import type { Stage } from "./stage.ts";
import { differenceOf, pictureOf, pictureOfJson, type ScriptEvent } from "./stream-picture.ts";

/** Something that happens when so many events are acknowledged. */
export interface Cue {
  readonly at: number;
  run(): void;
}

/** What a producer needs of the broker. */
type Producing = Pick<Stage, "call" | "ok">;

export interface ShowParts<S extends Producing = Stage> {
  readonly stage: S;
  readonly random: Random;
  /** As the producer names it. */
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly script: readonly ScriptEvent[];
}

export class Show<S extends Producing = Stage> {
  readonly parts: ShowParts<S>;
  /** Events that were answered with 200. */
  acknowledged = 0;
  #cues: Cue[] = [];
  #isEnding = false;

  constructor(parts: ShowParts<S>) {
    this.parts = parts;
  }

  get length(): number {
    return this.parts.script.length;
  }

  /** Its last event was sent at least. */
  get isEnding(): boolean {
    return this.#isEnding;
  }

  cue(at: number, run: () => void): void {
    this.#cues.push({ at, run });
  }

  /** Plays the script from its first event to its last. */
  async play(): Promise<void> {
    this.#cues.sort((a, b) => a.at - b.at);
    const { random, script } = this.parts;
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
   * What GET /stream shows against what was acknowledged; undefined: it holds all of that and
   * nothing else.
   */
  async lossOf(): Promise<string | undefined> {
    const { acknowledged } = this;
    if (acknowledged === 0) return undefined;
    const { status, body } = await this.parts.stage.call(this.path);
    if (status !== 200) return `${status} ${body.code}`;
    const found = pictureOfJson(body);
    if (found.nextIndex < acknowledged || found.nextIndex > acknowledged + 1)
      return `${found.nextIndex} events, ${acknowledged} were acknowledged`;
    return differenceOf(found, pictureOf(this.parts.script, found.nextIndex));
  }

  /** Of GET /stream. */
  get path(): string {
    const { channel, clientMsgNo, fromUid } = this.parts;
    const uid = channel.type === 1 ? `?uid=${fromUid}` : "";
    return `/stream/${channel.type}/${channel.id}/${clientMsgNo}${uid}`;
  }

  async #post(index: number, { type, data }: ScriptEvent): Promise<void> {
    const { stage, channel, fromUid, clientMsgNo } = this.parts;
    const body = await stage.ok("/event", {
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
   * An acknowledged event once more: answered like the first time, and nothing happens. A start is
   * refused once the stream has ended.
   */
  async #repeat(index: number): Promise<void> {
    const event = this.parts.script[index];
    if (this.isEnding && index === 0) return;
    if (event !== undefined && index < this.length - 1) await this.#post(index, event);
  }

  #runCues(index: number): void {
    while ((this.#cues[0]?.at ?? Number.NaN) <= index) this.#cues.shift()?.run();
  }
}
