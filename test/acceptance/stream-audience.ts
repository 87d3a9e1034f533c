// The viewers of a played stream. They join at random moments, disconnect and reconnect, stop
// reading and resume, read slowly, or request the stream. Some read server-sent events instead.
// What each viewer saw is compared with the script at the end.

import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";
import type { RestartableBroker } from "./restartable-broker.ts";
import type { ScriptedStream } from "./scripted-stream.ts";
import { SseReader } from "./sse-reader.ts";
import { differenceOf, pictureOf } from "./stream-picture.ts";
import type { StreamViewer } from "./stream-viewer.ts";

export type Habit = "stays" | "drops" | "lags" | "trickles" | "asks";
const FREQUENT: readonly Habit[] = ["stays", "drops", "asks"];
/** Habits that are assigned in turn. The habits that read much data are rare. */
export const HABITS: readonly Habit[] = [
  ...FREQUENT,
  "lags",
  ...FREQUENT,
  ...FREQUENT,
  "trickles",
  ...FREQUENT,
  ...FREQUENT,
  ...FREQUENT,
];

const TRICKLE_BYTES_PER_SECOND = 8_000_000;
/**
 * Number of padding pages a lagging viewer requests. Together they exceed what the kernel buffers
 * for a client that does not read (up to about 5 MB) plus the broker's lag bound, and stay below
 * the bound at which the client is disconnected.
 */
const PAD_PAGES = 120;
const PADDED = { id: "padded", type: GROUP_CHANNEL } as const;
const PAD_MESSAGES = 1;

/** Creates a group of these users. Its history is one message of 62.5 kB. */
export async function preparePadding(
  broker: RestartableBroker,
  uids: readonly string[],
): Promise<void> {
  await broker.createGroup(PADDED.id, uids);
  const content = { type: 1, content: "x".repeat(62_500) };
  for (let i = 0; i < PAD_MESSAGES; i++)
    await broker.ok("/message/send", {
      channel_id: PADDED.id,
      channel_type: PADDED.type,
      from_uid: uids[0],
      payload: Buffer.from(JSON.stringify(content)).toString("base64"),
    });
}

export class Spectator {
  readonly viewer: StreamViewer;
  readonly habit: Habit;
  readonly #stream: ScriptedStream;
  #isConnected = false;
  /** The viewer's actions so far, one after the other. */
  #actions: Promise<void> = Promise.resolve();

  constructor(viewer: StreamViewer, habit: Habit, stream: ScriptedStream) {
    this.viewer = viewer;
    this.habit = habit;
    this.#stream = stream;
  }

  /** Schedules the viewer's actions at random events of the script. */
  plan(random: Random): void {
    const { length } = this.#stream;
    const [join = 0, ...later] = Array.from({ length: 5 }, () =>
      random.below(length + length / 20),
    ).sort((a, b) => a - b);
    this.#cue(join, () => this.#connect());
    if (this.habit === "drops")
      later.forEach((at, i) => {
        this.#cue(at, () => (i % 2 === 0 ? this.#leave() : this.#connect()));
      });
    if (this.habit === "asks") for (const at of later) this.#cue(at, () => this.#requestStream());
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

  /** Waits until the viewer has the end of the stream. Returns the difference from the script. */
  async problem(): Promise<string | undefined> {
    const { viewer } = this;
    const { clientMsgNo, script } = this.#stream.options;
    await this.#actions;
    this.#isConnected = true;
    viewer.bytesPerSecond = undefined;
    viewer.resume();
    while (viewer.view(clientMsgNo)?.isEnded !== true) {
      if (!viewer.isOpen) await this.#connect();
      else await viewer.ended(clientMsgNo);
    }
    if (viewer.fault !== undefined) return viewer.fault.message;
    const view = viewer.view(clientMsgNo);
    if (view === undefined) return `${viewer.name} did not see the stream`;
    const difference = differenceOf(view.picture, pictureOf(script));
    return difference && `${viewer.name}: ${difference}`;
  }

  /** Number of received events that stand for several events of the producer. */
  get mergedCount(): number {
    return this.viewer.view(this.#stream.options.clientMsgNo)?.mergedCount ?? 0;
  }

  leave(): void {
    this.#isConnected = false;
    this.viewer.drop();
  }

  #cue(at: number, action: () => Promise<void>): void {
    this.#stream.cue(at, () => {
      this.#actions = this.#actions.then(action);
      this.#actions.catch(() => undefined); // `problem` reports rejections
    });
  }

  /**
   * Connects, even across a restart of the broker. Requests the stream only if it is ending: the
   * broker must push everything else that the viewer missed without a request.
   */
  async #connect(): Promise<void> {
    const { broker, clientMsgNo } = this.#stream.options;
    this.#isConnected = true;
    while (!this.viewer.isOpen) {
      await broker.up();
      await this.viewer.connect(broker.clientPort);
    }
    if (this.#stream.isEnding) await this.viewer.requestStream(clientMsgNo);
  }

  async #leave(): Promise<void> {
    this.leave();
  }

  async #requestStream(): Promise<void> {
    if (!this.viewer.isOpen && this.#isConnected) await this.#connect();
    if (this.#stream.acknowledged > 0)
      await this.viewer.requestStream(this.#stream.options.clientMsgNo);
  }
}

/**
 * Reads server-sent events from index `from`, and disconnects and continues at each index in
 * `drops`. Returns the difference from the script.
 */
export async function readOverHttp(
  stream: ScriptedStream,
  { from, drops }: { readonly from: number; readonly drops: readonly number[] },
): Promise<string | undefined> {
  const { broker, script } = stream.options;
  const reader = new SseReader(from);
  // A cue runs together with the following event. A drop at the last events could end the reader
  // after it has received the end.
  for (const at of drops)
    if (at < stream.length - 1 && from < stream.length - 2) stream.cue(at, () => reader.drop());
  while (!reader.isDone) {
    await broker.up();
    const { kills } = broker;
    const wasEnding = stream.isEnding;
    await reader.read(broker.apiPort, stream.path);
    if (reader.isDone) break;
    if (wasEnding && kills === broker.kills && stream.acknowledged === stream.length)
      return `the reader from ${from} did not receive the end`;
  }
  const before = pictureOf(script, from);
  const full = pictureOf(script);
  if (before.text + reader.text !== full.text) return `the text of the reader from ${from} differs`;
  const expected = [
    ...(from === 0 ? [{ index: 0, data: full.startData }] : []),
    ...full.notes.filter(({ index }) => index >= from).map(({ index, data }) => ({ index, data })),
    { index: script.length - 1, data: full.endData },
  ];
  if (JSON.stringify(reader.otherEvents) === JSON.stringify(expected)) return undefined;
  return `the other events of the reader from ${from} differ`;
}
