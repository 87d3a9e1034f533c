// All channels this client has seen, and where each stands. State: their timelines, least recently used first.
// After a reconnect it also finds what came in channels that the connect could not name (`missedBy`).

import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  channelKey,
  type Message,
} from "../broker/model.ts";
import type { ResumePoint } from "../protocol/protocol.ts";
import type { Cursor } from "./api.ts";
import type { Ask, Connack } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import {
  type Place,
  type Run,
  Timeline,
  type TimelineParts,
} from "./timeline.ts";

export interface TimelinesParts extends TimelineParts {
  readonly uid: string;
  /** Channels the app goes on with, least recently used first. */
  readonly cursors: readonly Cursor[];
}

/** The least recently used channel beyond that is forgotten. */
const MAX_TIMELINES = 10_000;

export class Timelines {
  readonly #parts: TimelinesParts;
  readonly #all = new Map<ChannelKey, Timeline>();
  /** The channels that the server resumes. */
  #named = new Set<ChannelKey>();
  /** Server time: what came later in a channel that was never seen came while this client was there, or away for a moment. */
  #sinceMs: number | undefined;
  #isCatchingUp = false;
  #epoch = 0;

  constructor(parts: TimelinesParts) {
    this.#parts = parts;
    for (const cursor of parts.cursors)
      this.#all.set(
        this.#keyOf(cursor.channel),
        this.#make(cursor.channel, cursor),
      );
  }

  /** Most recently used first. */
  resume(limit: number): readonly ResumePoint[] {
    return [...this.cursors()].reverse().slice(0, limit);
  }

  cursors(): readonly Cursor[] {
    return [...this.#all.values()].flatMap(({ cursor }) => cursor ?? []);
  }

  opened({ serverTimeMs, resume }: Connack): void {
    this.#named = new Set(resume.map(({ channel }) => this.#keyOf(channel)));
    for (const { channel, status, headSeq } of resume)
      if (status === "ok")
        this.#all.get(this.#keyOf(channel))?.resumed(headSeq);
      else this.#denied(channel);
    const isFirst = this.#sinceMs === undefined;
    this.#sinceMs ??= serverTimeMs;
    const unnamed = this.cursors().some(
      ({ channel }) => !this.#named.has(this.#keyOf(channel)),
    );
    if (isFirst && !unnamed) return;
    this.#isCatchingUp = true;
    for (const timeline of this.#all.values()) timeline.wait();
    void this.#catchUp(unnamed);
  }

  lost(): void {
    this.#epoch += 1;
    this.#isCatchingUp = false;
    for (const timeline of this.#all.values()) timeline.lost();
  }

  message(channel: ChannelRef, message: Message): void {
    this.#at(channel).take(message);
  }

  run(run: Run): void {
    this.#at(run.channel).run(run);
  }

  acked(channel: ChannelRef, ack: Place): void {
    if (ack.messageSeq > 0) this.#at(channel).acked(ack);
  }

  /** What is newer than `#sinceMs` in channels never seen, and the rest of those that were not named. */
  async #catchUp(unnamed: boolean): Promise<void> {
    const epoch = this.#epoch;
    const found = missedBy({
      ask: this.#parts.ask,
      sinceMs: this.#sinceMs ?? 0,
      all: unnamed,
      isKnown: (channel) => this.#all.get(this.#keyOf(channel))?.isKnown,
    });
    try {
      for await (const { channel, afterSeq, headSeq } of found) {
        if (epoch !== this.#epoch) return;
        if (this.#named.has(this.#keyOf(channel))) continue;
        const known = this.#all.get(this.#keyOf(channel)); // asking for it is no use of it
        if (afterSeq !== undefined) this.#at(channel).begin(afterSeq);
        (known ?? this.#at(channel)).reach(headSeq);
      }
    } catch (error) {
      if (epoch !== this.#epoch || isLost(error)) return; // the next connection does it all again
      this.#parts.trouble(error as JindouError); // `ask` rejects with nothing else
    }
    if (epoch !== this.#epoch) return;
    this.#isCatchingUp = false;
    for (const timeline of this.#all.values()) timeline.begin(undefined);
  }

  /** The user left the group while away. */
  #denied(channel: ChannelRef): void {
    this.#all.delete(this.#keyOf(channel));
    const message = `No member of ${channel.id} any more`;
    this.#parts.trouble(new JindouError("not_in_channel", { message }));
  }

  #keyOf(channel: ChannelRef): ChannelKey {
    return channelKey(channel, this.#parts.uid);
  }

  /** The channel's timeline, which becomes the most recently used one. */
  #at(channel: ChannelRef): Timeline {
    const key = this.#keyOf(channel);
    const timeline = this.#all.get(key) ?? this.#make(channel);
    this.#all.delete(key);
    this.#all.set(key, timeline);
    this.#dropOldest();
    return timeline;
  }

  #make(channel: ChannelRef, cursor?: Cursor): Timeline {
    const { id, type } = channel;
    const timeline = new Timeline({ id, type }, this.#parts, cursor);
    if (this.#isCatchingUp) timeline.wait();
    return timeline;
  }

  /** What is forgotten must not look like a channel that was never seen. */
  #dropOldest(): void {
    if (this.#all.size <= MAX_TIMELINES) return;
    const [oldest] = this.#all;
    if (oldest === undefined) return;
    const [key, { lastTimestampMs }] = oldest;
    this.#all.delete(key);
    this.#sinceMs = Math.max(this.#sinceMs ?? 0, lastTimestampMs);
  }
}

interface Missed {
  readonly channel: ChannelRef;
  /** Where to begin in a channel that was never seen; undefined: the client has a cursor. */
  readonly afterSeq: number | undefined;
  readonly headSeq: number;
}

interface CatchUp {
  readonly ask: Ask;
  /** Server time, Unix milliseconds: older messages in channels never seen do not matter. */
  readonly sinceMs: number;
  /** Look at all conversations, not only those with newer messages. */
  readonly all: boolean;
  isKnown(channel: ChannelRef): boolean | undefined;
}

const FIRST_PAGE = 50;
const PAGE = 500;
const MAX_CONVERSATIONS = 10_000;
const HISTORY_PAGE = 200;
const MAX_HISTORY_PAGES = 10;

/** Rejects with what `ask` rejects with. */
async function* missedBy(parts: CatchUp): AsyncIterable<Missed> {
  const { ask, sinceMs, all, isKnown } = parts;
  for (let offset = 0; offset < MAX_CONVERSATIONS; ) {
    const limit = offset === 0 ? FIRST_PAGE : PAGE;
    const page = await ask({ kind: "conversations", limit, offset });
    for (const conversation of page.conversations) {
      const { channel, headSeq } = conversation;
      const isNew = isNewer(conversation, sinceMs);
      if (!isNew && !all) return;
      if (isKnown(channel)) yield { channel, afterSeq: undefined, headSeq };
      else if (isNew)
        yield {
          channel,
          afterSeq: await startOf(conversation, parts),
          headSeq,
        };
    }
    offset += page.conversations.length;
    if (!page.more || page.conversations.length === 0) return;
  }
}

function isNewer({ last }: Conversation, sinceMs: number): boolean {
  return last !== undefined && last.timestampMs > sinceMs;
}

/** The seq before the oldest message that is newer than `sinceMs` and shown. */
async function startOf(
  { channel, headSeq, deletedSeq }: Conversation,
  { ask, sinceMs }: CatchUp,
): Promise<number> {
  let afterSeq = headSeq;
  for (let page = 0; page < MAX_HISTORY_PAGES; page++) {
    const { messages, more } = await ask({
      kind: "history",
      channel,
      fromSeq: deletedSeq + 1,
      toSeq: afterSeq,
      limit: HISTORY_PAGE,
      reverse: true,
    });
    const newer = messages.filter((one) => one.timestampMs > sinceMs);
    afterSeq = (newer.at(-1)?.messageSeq ?? afterSeq + 1) - 1;
    if (newer.length < messages.length || !more || afterSeq <= deletedSeq)
      break;
  }
  return afterSeq;
}
