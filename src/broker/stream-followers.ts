// Lets HTTP clients follow streams outside any session. Each follower gets every event from its
// start index, in order and at its own pace: events that are published while it is paused are read
// from the store and merged. If the permission of its user may have changed, a follower gets no
// event until the permission has been checked.

import { BrokerError } from "./errors.ts";
import { type ChannelView, viewedKey } from "./ids.ts";
import type { Interest } from "./interest.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
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

interface FollowViewer {
  readonly uid: string;
  /** Returns whether the user may still read the stream. Must not reject. */
  mayStay(): Promise<boolean>;
}

export interface FollowTarget {
  readonly view: ChannelView;
  readonly clientMsgNo: string;
  readonly fromIndex: number;
  /** User whose permission is checked after each read of the store. `undefined` for no check. */
  readonly viewer?: FollowViewer | undefined;
}

export interface StreamFollowers {
  /**
   * Throws `bad_request` if the stream has not reached `fromIndex`, and also `stream_unknown`,
   * `bad_id`, `overloaded` or `unavailable`.
   */
  follow(target: FollowTarget, sink: StreamSink): Promise<FollowHandle>;
  onEvent(event: ClusterEvent): void;
  /** Checks the viewers of the group's followers, because members may have been removed. */
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

interface Follower {
  /** Channel of the stream. */
  readonly source: ChannelKey;
  readonly topics: ReadonlySet<Topic>;
  readonly clientMsgNo: string;
  readonly sink: StreamSink;
  readonly viewer: FollowViewer | undefined;
  cursor: StreamCursor;
  status: "opening" | "reading" | "live" | "paused" | "left";
  /** True if an event was published during the read, whose result may not contain it. */
  mustReadAgain: boolean;
  /** Number of the last read. The result of an earlier read is ignored. */
  turn: number;
}

export function createStreamFollowers(ports: FollowerPorts): StreamFollowers {
  const { store, interest } = ports;
  const table = new ReaderTable<Follower>({
    interest,
    maxReaders: ports.maxFollowers,
    maxReadersPerUser: ports.maxFollowersPerUser,
  });

  function leave(follower: Follower): void {
    follower.status = "left";
    follower.turn += 1;
    table.leave(follower);
  }

  function finish(follower: Follower): void {
    const { status, sink } = follower;
    leave(follower);
    if (status !== "left" && status !== "opening") sink.ended();
  }

  function push(follower: Follower, event: ChannelEvent): boolean {
    if (event.stream === undefined) return true;
    follower.cursor = cursorAfter(event, event.stream);
    const wantsMore = follower.sink.push(event);
    if (hasLeft(follower)) return false;
    if (event.stream.state !== "active") finish(follower);
    else if (!wantsMore) follower.status = "paused";
    return follower.status !== "left" && wantsMore;
  }

  async function catchUp(follower: Follower): Promise<void> {
    follower.status = "reading";
    follower.turn += 1;
    const { turn } = follower;
    do {
      follower.mustReadAgain = false;
      const snapshot = await store.stream(follower.source, follower.clientMsgNo);
      const mayStay = (await follower.viewer?.mayStay()) ?? true;
      if (follower.turn !== turn) return;
      if (!mayStay || snapshot === undefined) return finish(follower);
      for (const event of eventsFrom(snapshot, follower.cursor)) if (!push(follower, event)) return;
      if (snapshot.state !== "active") return finish(follower);
    } while (follower.mustReadAgain);
    follower.status = "live";
  }

  function run(follower: Follower): void {
    catchUp(follower).catch((error) => {
      ports.onError(error, "Could not read a followed stream");
      finish(follower);
    });
  }

  async function recheckPaused(follower: Follower, viewer: FollowViewer): Promise<void> {
    const { turn } = follower;
    const mayStay = await viewer.mayStay();
    if (follower.turn === turn && !mayStay) finish(follower);
  }

  /** Checks whether followers may stay, except those whose first read includes a check. */
  function recheck(followers: Iterable<Follower>): void {
    for (const follower of followers) {
      const { viewer, status } = follower;
      if (viewer === undefined || status === "opening") continue;
      if (status === "paused") void recheckPaused(follower, viewer);
      else run(follower);
    }
  }

  function recheckGroup(channelId: string): void {
    const channel = { id: channelId, type: GROUP_CHANNEL } as const;
    recheck([...table.ofSource(channelKey(channel, ""))]);
  }

  async function begin(follower: Follower, fromIndex: number): Promise<void> {
    await table.enter(follower);
    const { source, clientMsgNo } = follower;
    const snapshot = await store.stream(source, clientMsgNo);
    if (snapshot === undefined) throw new BrokerError("stream_unknown");
    const textOffset = await store.streamTextOffset(source, clientMsgNo, fromIndex);
    if (textOffset === undefined) throw beyond(snapshot);
    if (hasLeft(follower)) throw new BrokerError("unavailable"); // all followers were closed
    follower.cursor = { index: fromIndex, textOffset };
  }

  function deliver(event: ChannelEvent): void {
    const { key, clientMsgNo, stream } = event;
    if (stream === undefined) return;
    for (const follower of table.ofSource(key)) {
      if (follower.clientMsgNo !== clientMsgNo) continue;
      if (follower.status === "reading") follower.mustReadAgain = true;
      if (follower.status !== "live") continue;
      if (stream.index === follower.cursor.index) push(follower, event);
      // Events are missing, or the follower already has a part of this merged content.
      else if (stream.nextIndex > follower.cursor.index) run(follower);
    }
  }

  return {
    async follow({ view, clientMsgNo, fromIndex, viewer }, sink) {
      const source = viewedKey(view);
      table.assertRoom({ viewer });
      const follower: Follower = {
        source,
        topics: topicsOf(view, viewer),
        clientMsgNo,
        sink,
        viewer,
        cursor: { index: fromIndex, textOffset: 0 },
        status: "opening",
        mustReadAgain: false,
        turn: 0,
      };
      try {
        await begin(follower, fromIndex);
      } catch (error) {
        leave(follower);
        throw error;
      }
      run(follower);
      return {
        resume: () => {
          if (follower.status === "paused") run(follower);
        },
        stop: () => leave(follower),
      };
    },

    onEvent(event) {
      if (event.kind === "credential") recheck(table.ofViewer(event.uid));
      else if (event.kind === "removal") recheckGroup(event.channelId);
      else if (event.kind === "event") deliver(event.event);
    },

    recheckGroup,

    close() {
      for (const follower of table.all()) finish(follower);
    },
  };
}

function hasLeft({ status }: Follower): boolean {
  return status === "left";
}

function topicsOf(
  { channel, uid }: ChannelView,
  viewer: FollowViewer | undefined,
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
