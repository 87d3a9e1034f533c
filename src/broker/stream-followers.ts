// Lets HTTP clients follow stream events outside any session, each with a cursor at an index (see
// cursor.ts). Events that are published while a follower is paused or reads the store are later
// read from the store in merged form. If a follower's user may have lost permission to read, the
// follower gets no event until the permission has been checked.

import { Cursor, type CursorFeed, type CursorStep, type CursorViewer } from "./cursor.ts";
import { BrokerError } from "./errors.ts";
import { type ChannelView, viewedKey } from "./ids.ts";
import type { Interest } from "./interest.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  GROUP_CHANNEL,
  groupTopic,
  type StreamSnapshot,
  type Topic,
  userTopic,
} from "./model.ts";
import type { ClusterEvent, StreamStore } from "./ports.ts";
import { ReaderTable } from "./reader-table.ts";
import { cursorAfter, eventsFrom, type StreamCursor } from "./stream-pieces.ts";

export interface StreamSink {
  /** Sends one event. Returns false to receive no further events until `resume`. */
  push(event: ChannelEvent): boolean;
  ended(): void;
}

export interface FollowHandle {
  resume(): void;
  stop(): void;
}

export interface FollowTarget {
  readonly view: ChannelView;
  readonly clientMsgNo: string;
  readonly fromIndex: number;
  /** User whose permission is checked after each read of the store. `undefined` means no check. */
  readonly viewer?: CursorViewer | undefined;
}

export interface StreamFollowers {
  /**
   * Throws `bad_request` if the stream has not reached `fromIndex`, and also `stream_unknown`,
   * `bad_id`, `overloaded` or `unavailable`.
   */
  follow(target: FollowTarget, sink: StreamSink): Promise<FollowHandle>;
  onEvent(event: ClusterEvent): void;
  /**
   * Checks whether the viewers of the group's streams may still read, because members may have been
   * removed.
   */
  recheckGroup(channelId: string): void;
  close(): void;
}

interface FollowerPorts {
  readonly store: Pick<StreamStore, "stream" | "streamTextOffset">;
  readonly interest: Pick<Interest, "listen" | "unlisten">;
  readonly maxFollowers: number;
  /** Maximum number of followers of one user. 0 means no limit. */
  readonly maxFollowersPerUser: number;
  readonly onError: (error: unknown, what: string) => void;
}

export function createStreamFollowers(ports: FollowerPorts): StreamFollowers {
  const { store, interest } = ports;
  const table = new ReaderTable<Cursor<ChannelEvent, ChannelEvent>>({
    interest,
    maxReaders: ports.maxFollowers,
    maxReadersPerUser: ports.maxFollowersPerUser,
  });

  async function beginAt(
    { key, clientMsgNo }: StreamName,
    fromIndex: number,
  ): Promise<StreamCursor> {
    const snapshot = await store.stream(key, clientMsgNo);
    if (snapshot === undefined) throw new BrokerError("stream_unknown");
    const textOffset = await store.streamTextOffset(key, clientMsgNo, fromIndex);
    if (textOffset === undefined) throw beyond(snapshot);
    return { index: fromIndex, textOffset };
  }

  function recheckGroup(channelId: string): void {
    for (const cursor of table.onTopic(groupTopic(channelId))) cursor.recheck();
  }

  return {
    async follow({ view, clientMsgNo, fromIndex, viewer }, sink) {
      const name = { key: viewedKey(view), clientMsgNo };
      table.assertRoom({ viewer });
      const feed = new StreamFeed(name, sink, store);
      const place = { source: sourceOf(name), topics: topicsOf(view, viewer), viewer };
      const cursor = new Cursor(place, feed, {
        maxHeld: 0, // events that are published during a read are read later
        onEnd: () => table.leave(cursor),
        onError: (error) =>
          ports.onError(error, "Could not read a stream for a client that follows it"),
      });
      try {
        await table.enter(cursor);
        feed.position = await beginAt(name, fromIndex);
        if (cursor.hasEnded) throw new BrokerError("unavailable"); // all followers were closed
      } catch (error) {
        cursor.stop();
        throw error;
      }
      cursor.start();
      return cursor;
    },

    onEvent(event) {
      if (event.kind === "event") {
        // All followers get the same object, so that its text is encoded only once.
        const { event: published } = event;
        if (published.stream === undefined || table.size === 0) return;
        for (const cursor of table.ofSource(sourceOf(published))) cursor.published(published);
      } else if (event.kind === "credential")
        for (const cursor of table.ofViewer(event.uid)) cursor.recheck();
      else if (event.kind === "removal") recheckGroup(event.channelId);
      else if (event.kind === "missed")
        for (const cursor of table.onTopic(event.topic)) cursor.reread();
    },

    recheckGroup,

    close() {
      for (const cursor of table.all()) cursor.finish("failed");
    },
  };
}

interface StreamName {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}

/** The reader of a stream's events, and its position. */
class StreamFeed implements CursorFeed<ChannelEvent, ChannelEvent> {
  position: StreamCursor = { index: 0, textOffset: 0 };
  readonly #name: StreamName;
  readonly #sink: StreamSink;
  readonly #store: Pick<StreamStore, "stream">;

  constructor(name: StreamName, sink: StreamSink, store: Pick<StreamStore, "stream">) {
    this.#name = name;
    this.#sink = sink;
    this.#store = store;
  }

  async read(): ReturnType<CursorFeed<ChannelEvent, ChannelEvent>["read"]> {
    const { key, clientMsgNo } = this.#name;
    const snapshot = await this.#store.stream(key, clientMsgNo);
    if (snapshot === undefined) return { end: "missing" };
    const isEnded = snapshot.state !== "active";
    return { items: eventsFrom(snapshot, this.position), isUpToDate: true, isEnded };
  }

  judge(event: ChannelEvent): CursorStep<ChannelEvent> {
    const { index = 0, nextIndex = 0 } = event.stream ?? {};
    if (index === this.position.index) return { item: event };
    // Events are missing, or the follower already has part of this merged content.
    return nextIndex > this.position.index ? "reread" : "old";
  }

  push(event: ChannelEvent): ReturnType<CursorFeed<ChannelEvent, ChannelEvent>["push"]> {
    const { stream } = event;
    if (stream === undefined) return "next"; // cannot happen, as `onEvent` passes no such event
    this.position = cursorAfter(event, stream);
    const wantsMore = this.#sink.push(event);
    if (stream.state !== "active") return "ended";
    return wantsMore ? "next" : "paused";
  }

  ended(): void {
    this.#sink.ended();
  }
}

function sourceOf({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

function topicsOf(
  { channel, uid }: ChannelView,
  viewer: CursorViewer | undefined,
): ReadonlySet<Topic> {
  const channelTopic =
    channel.type === GROUP_CHANNEL ? groupTopic(channel.id) : userTopic(uid ?? channel.id);
  return new Set(viewer === undefined ? [channelTopic] : [channelTopic, userTopic(viewer.uid)]);
}

function beyond({ nextIndex }: StreamSnapshot): BrokerError {
  return new BrokerError("bad_request", {
    message: `from must be at most ${nextIndex}, the next index of the stream`,
    details: [{ path: "from", message: "is higher than the next index of the stream" }],
  });
}
