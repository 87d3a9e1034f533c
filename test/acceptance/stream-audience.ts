// The audience of a show: viewers who join at random places, drop and come back, stop reading and
// go on, read slowly, ask; readers of server-sent events. State: per member what it still has to
// do. What they saw is judged against the script when the show is over.

import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";
import { SseReader } from "./sse-reader.ts";
import type { Stage } from "./stage.ts";
import { differenceOf, pictureOf } from "./stream-picture.ts";
import type { Show } from "./stream-show.ts";
import type { StreamViewer } from "./stream-viewer.ts";

export type Habit = "stays" | "drops" | "lags" | "trickles" | "asks";
const OFTEN: readonly Habit[] = ["stays", "drops", "asks"];
/** They take turns; those with much to read are fewer. */
export const HABITS: readonly Habit[] = [
  ...OFTEN,
  "lags",
  ...OFTEN,
  ...OFTEN,
  "trickles",
  ...OFTEN,
  ...OFTEN,
  ...OFTEN,
];

const TRICKLE_BYTES_PER_SECOND = 8_000_000;
/**
 * Together more than the kernel keeps for one who does not read (up to about 5 MB) and the broker's
 * lag bound, less than would cut it off.
 */
const PAD_PAGES = 120;
const PADDED = { id: "padded", type: GROUP_CHANNEL } as const;
const PAD_MESSAGES = 1;

/** A channel whose history is one message of 62.5 kB, open to these users. */
export async function preparePadding(stage: Stage, uids: readonly string[]): Promise<void> {
  await stage.createGroup(PADDED.id, uids);
  const content = { type: 1, content: "x".repeat(62_500) };
  for (let i = 0; i < PAD_MESSAGES; i++)
    await stage.ok("/message/send", {
      channel_id: PADDED.id,
      channel_type: PADDED.type,
      from_uid: uids[0],
      payload: Buffer.from(JSON.stringify(content)).toString("base64"),
    });
}

export class Spectator {
  readonly viewer: StreamViewer;
  readonly habit: Habit;
  readonly #show: Show;
  #isWanted = false;
  #deeds: Promise<void> = Promise.resolve();

  constructor(viewer: StreamViewer, habit: Habit, show: Show) {
    this.viewer = viewer;
    this.habit = habit;
    this.#show = show;
  }

  /** Puts its deeds at random places of the script. */
  plan(random: Random): void {
    const { length } = this.#show;
    const [join = 0, ...later] = Array.from({ length: 5 }, () =>
      random.below(length + length / 20),
    ).sort((a, b) => a - b);
    this.#cue(join, () => this.#come());
    if (this.habit === "drops")
      later.forEach((at, i) => {
        this.#cue(at, () => (i % 2 === 0 ? this.#leave() : this.#come()));
      });
    if (this.habit === "asks") for (const at of later) this.#cue(at, () => this.#ask());
    const [pause = 0, resume = length] = later;
    if (this.habit === "trickles")
      this.#cue(pause, async () => {
        this.viewer.bytesPerSecond = TRICKLE_BYTES_PER_SECOND;
        this.viewer.pad(PADDED, PAD_PAGES);
      });
    if (this.habit === "lags") {
      this.#cue(pause, async () => {
        this.viewer.pause();
        this.viewer.pad(PADDED, PAD_PAGES);
      });
      this.#cue(resume, async () => this.viewer.resume());
    }
  }

  /** Resolves with what is wrong with what it saw, once it has the end. */
  async verdict(): Promise<string | undefined> {
    const { viewer } = this;
    const { clientMsgNo, script } = this.#show.parts;
    await this.#deeds;
    this.#isWanted = true;
    viewer.bytesPerSecond = undefined;
    viewer.resume();
    while (viewer.view(clientMsgNo)?.isEnded !== true) {
      if (!viewer.isOpen) await this.#come();
      else await viewer.ended(clientMsgNo);
    }
    if (viewer.fault !== undefined) return viewer.fault.message;
    const view = viewer.view(clientMsgNo);
    if (view === undefined) return `${viewer.name} saw nothing`;
    const difference = differenceOf(view.picture, pictureOf(script));
    return difference && `${viewer.name}: ${difference}`;
  }

  /** Events it got that stood for several. */
  get mergedCount(): number {
    return this.viewer.view(this.#show.parts.clientMsgNo)?.mergedCount ?? 0;
  }

  leave(): void {
    this.#isWanted = false;
    this.viewer.drop();
  }

  #cue(at: number, deed: () => Promise<void>): void {
    this.#show.cue(at, () => {
      this.#deeds = this.#deeds.then(deed);
      this.#deeds.catch(() => undefined); // `verdict` tells
    });
  }

  /**
   * Connects, also over a restart of the broker. What went on while it was away it has to be told
   * without asking, unless it was the end.
   */
  async #come(): Promise<void> {
    const { stage, clientMsgNo } = this.#show.parts;
    this.#isWanted = true;
    while (!this.viewer.isOpen) {
      await stage.up();
      await this.viewer.connect(stage.clientPort);
    }
    if (this.#show.isEnding) await this.viewer.ask(clientMsgNo);
  }

  async #leave(): Promise<void> {
    this.leave();
  }

  async #ask(): Promise<void> {
    if (!this.viewer.isOpen && this.#isWanted) await this.#come();
    if (this.#show.acknowledged > 0) await this.viewer.ask(this.#show.parts.clientMsgNo);
  }
}

/**
 * Reads server-sent events from a random index on, breaks off twice and goes on. Resolves with what
 * was wrong.
 */
export async function readOverHttp(
  show: Show,
  { from, drops }: { readonly from: number; readonly drops: readonly number[] },
): Promise<string | undefined> {
  const { stage, script } = show.parts;
  const reader = new SseReader(from);
  // What is due already runs with the next event: behind the last one it would cut off who reads
  // the end.
  for (const at of drops)
    if (at < show.length - 1 && from < show.length - 2) show.cue(at, () => reader.drop());
  while (!reader.isDone) {
    await stage.up();
    const { kills } = stage;
    const dropsLeft = show.isEnding;
    await reader.read(stage.apiPort, show.path);
    if (reader.isDone) break;
    if (dropsLeft && kills === stage.kills && show.acknowledged === show.length)
      return `the reader from ${from} was left without an end`;
  }
  const before = pictureOf(script, from);
  const whole = pictureOf(script);
  if (before.text + reader.text !== whole.text) return `the reader from ${from} has another text`;
  const wanted = [
    ...(from === 0 ? [{ index: 0, data: whole.startData }] : []),
    ...whole.notes.filter(({ index }) => index >= from).map(({ index, data }) => ({ index, data })),
    { index: script.length - 1, data: whole.endData },
  ];
  if (JSON.stringify(reader.others) === JSON.stringify(wanted)) return undefined;
  return `the reader from ${from} has other notes`;
}
