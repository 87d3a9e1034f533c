// Readers of one stream outside any session (HTTP): each gets every event from where it asked, in order, at its own pace. State: who follows.
// What a follower missed while it took nothing is read from the store again and comes merged. One that reads by a user's right is given what was read
// only after that right was judged, and nothing more from the moment on that it is in doubt.

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
import { cursorAfter, eventsFrom, type StreamCursor } from "./stream-pieces.ts";

/** Who reads. */
export interface StreamSink {
  /** Takes one event. False: it wants no more until `resume`. */
  push(event: ChannelEvent): boolean;
  /** The stream is over and all of it was pushed, or it cannot be read on: nothing comes any more. */
  ended(): void;
}

export interface Following {
  resume(): void;
  /** Safe to call twice. */
  stop(): void;
}

/** A user by whose right somebody reads. */
interface FollowViewer {
  readonly uid: string;
  /** Whether the user may read on, as the store has it now. Must not reject. */
  mayStay(): Promise<boolean>;
}

export interface FollowTarget {
  readonly view: ChannelView;
  readonly clientMsgNo: string;
  /** The index of the first event wanted. */
  readonly fromIndex: number;
  /** Asked after each read of the store, which follows whenever the user's right may have changed. Undefined: whoever asks has a right of its own. */
  readonly viewer?: FollowViewer | undefined;
}

export interface StreamFollowers {
  /** Throws `stream_unknown`, `bad_id`, `bad_request` (an index the stream has not reached), `overloaded` at a bound, `unavailable`. */
  follow(target: FollowTarget, sink: StreamSink): Promise<Following>;
  /** A listener of the cluster's events. */
  heard(event: ClusterEvent): void;
  /** Some of the group's members may be none any more. */
  doubtGroup(channelId: string): void;
  /** Ends every follower. */
  close(): void;
}

interface FollowerParts {
  readonly store: Pick<StreamStore, "stream" | "streamTextOffset">;
  readonly interest: Pick<Interest, "listen" | "unlisten">;
  readonly maxFollowers: number;
  /** Of one user. 0 = no bound of its own. */
  readonly maxFollowersPerUser: number;
  readonly onProblem: (error: unknown, what: string) => void;
}

interface Follower {
  readonly key: ChannelKey;
  readonly topics: ReadonlySet<Topic>;
  readonly clientMsgNo: string;
  readonly sink: StreamSink;
  readonly viewer: FollowViewer | undefined;
  cursor: StreamCursor;
  /** `coming`: its sink has not been promised anything yet. */
  status: "coming" | "reading" | "live" | "paused" | "over";
  /** While it reads: an event came that the read may not show. */
  isBehind: boolean;
  /** Grows with each read that begins: an older one that comes back has no say. */
  turn: number;
}

export function createStreamFollowers(parts: FollowerParts): StreamFollowers {
  const { store, maxFollowers, maxFollowersPerUser } = parts;
  const table = new FollowerTable(parts.interest);

  function leave(follower: Follower): void {
    follower.status = "over";
    follower.turn += 1;
    table.leave(follower);
  }

  function finish(follower: Follower): void {
    const { status, sink } = follower;
    leave(follower);
    if (status !== "over" && status !== "coming") sink.ended();
  }

  /** Pushes one event; false when no further one may follow now. */
  function give(follower: Follower, event: ChannelEvent): boolean {
    if (event.stream === undefined) return true;
    follower.cursor = cursorAfter(event, event.stream);
    const wantsMore = follower.sink.push(event);
    if (isOver(follower)) return false;
    if (event.stream.state !== "active") finish(follower);
    else if (!wantsMore) follower.status = "paused";
    return follower.status !== "over" && wantsMore;
  }

  /** Reads what the store has behind the cursor until nothing new came meanwhile, then goes live. */
  async function catchUp(follower: Follower): Promise<void> {
    follower.status = "reading";
    follower.turn += 1;
    const { turn } = follower;
    do {
      follower.isBehind = false;
      const snapshot = await store.stream(follower.key, follower.clientMsgNo);
      const mayStay = (await follower.viewer?.mayStay()) ?? true;
      if (follower.turn !== turn) return;
      if (!mayStay || snapshot === undefined) return finish(follower); // it left history
      for (const event of eventsFrom(snapshot, follower.cursor))
        if (!give(follower, event)) return;
      if (snapshot.state !== "active") return finish(follower);
    } while (follower.isBehind);
    follower.status = "live";
  }

  function run(follower: Follower): void {
    catchUp(follower).catch((error) => {
      parts.onProblem(error, "A followed stream could not be read");
      finish(follower);
    });
  }

  /** One whose sink takes nothing is given nothing: it only ends. */
  async function judgePaused(
    follower: Follower,
    viewer: FollowViewer,
  ): Promise<void> {
    const { turn } = follower;
    const mayStay = await viewer.mayStay();
    if (follower.turn === turn && !mayStay) finish(follower);
  }

  /** The right of those followers' viewer may have changed: they get nothing until it was judged. One that is coming is judged when it has come. */
  function doubt(followers: Iterable<Follower>): void {
    for (const follower of followers) {
      const { viewer, status } = follower;
      if (viewer === undefined || status === "coming") continue;
      if (status === "paused") void judgePaused(follower, viewer);
      else run(follower);
    }
  }

  function doubtGroup(channelId: string): void {
    const channel = { id: channelId, type: GROUP_CHANNEL } as const;
    doubt([...table.inChannel(channelKey(channel, ""))]);
  }

  function assertRoom(viewer: FollowViewer | undefined): void {
    if (table.size >= maxFollowers)
      throw new BrokerError("overloaded", {
        message: "Too many readers follow streams here",
      });
    if (viewer === undefined || maxFollowersPerUser === 0) return;
    if (table.ofViewer(viewer.uid).size >= maxFollowersPerUser)
      throw new BrokerError("overloaded", {
        message: "The user follows too many streams here",
      });
  }

  async function begin(follower: Follower, fromIndex: number): Promise<void> {
    await table.enter(follower);
    const { key, clientMsgNo } = follower;
    const found = await store.stream(key, clientMsgNo);
    if (found === undefined) throw new BrokerError("stream_unknown");
    const textOffset = await store.streamTextOffset(
      key,
      clientMsgNo,
      fromIndex,
    );
    if (textOffset === undefined) throw beyond(found);
    if (isOver(follower)) throw new BrokerError("unavailable"); // closed meanwhile
    follower.cursor = { index: fromIndex, textOffset };
  }

  function tell(event: ChannelEvent): void {
    const { key, clientMsgNo, stream } = event;
    if (stream === undefined) return;
    for (const follower of table.inChannel(key)) {
      if (follower.clientMsgNo !== clientMsgNo) continue;
      if (follower.status === "reading") follower.isBehind = true;
      if (follower.status !== "live") continue;
      if (stream.index === follower.cursor.index) give(follower, event);
      else if (stream.nextIndex > follower.cursor.index) run(follower); // something was missed, or comes merged with what it has
    }
  }

  return {
    async follow({ view, clientMsgNo, fromIndex, viewer }, sink) {
      const key = viewedKey(view);
      assertRoom(viewer);
      const follower: Follower = {
        key,
        topics: topicsOf(view, viewer),
        clientMsgNo,
        sink,
        viewer,
        cursor: { index: fromIndex, textOffset: 0 },
        status: "coming",
        isBehind: false,
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

    heard(event) {
      if (event.kind === "credential") doubt(table.ofViewer(event.uid));
      else if (event.kind === "removal") doubtGroup(event.channelId);
      else if (event.kind === "event") tell(event.event);
    },

    doubtGroup,

    close() {
      for (const follower of table.all()) finish(follower);
    },
  };
}

function isOver({ status }: Follower): boolean {
  return status === "over";
}

/** Where the stream's events come, and what is told of the viewer. */
function topicsOf(
  { channel, uid }: ChannelView,
  viewer: FollowViewer | undefined,
): ReadonlySet<Topic> {
  const ofChannel =
    channel.type === GROUP_CHANNEL
      ? groupTopic(channel.id)
      : userTopic(uid ?? channel.id);
  return new Set(
    viewer === undefined ? [ofChannel] : [ofChannel, userTopic(viewer.uid)],
  );
}

function beyond({ nextIndex }: StreamSnapshot): BrokerError {
  return new BrokerError("bad_request", {
    message: `from is beyond the stream's next index, ${nextIndex}`,
    details: [{ path: "from", message: "is beyond the stream" }],
  });
}

/** The followers of this node. Maps: followers by channel, by viewer, by topic. A topic is listened to while it has one. */
class FollowerTable {
  readonly #interest: Pick<Interest, "listen" | "unlisten">;
  readonly #all = new Set<Follower>();
  readonly #byKey = new Map<ChannelKey, Set<Follower>>();
  readonly #byViewer = new Map<string, Set<Follower>>();
  readonly #byTopic = new Map<Topic, Set<Follower>>();

  constructor(interest: Pick<Interest, "listen" | "unlisten">) {
    this.#interest = interest;
  }

  get size(): number {
    return this.#all.size;
  }

  /** All of them as they are now. */
  all(): readonly Follower[] {
    return [...this.#all];
  }

  /** Those in the channel; may be gone through while they leave. */
  inChannel(key: ChannelKey): Iterable<Follower> {
    return this.#byKey.get(key) ?? [];
  }

  /** Those who read by that user's right. */
  ofViewer(uid: string): ReadonlySet<Follower> {
    return this.#byViewer.get(uid) ?? new Set();
  }

  /** In at once; resolves when all of its topics are listened to. Throws `unavailable`; it is in all the same. */
  async enter(follower: Follower): Promise<void> {
    const { key, topics, viewer } = follower;
    this.#all.add(follower);
    add(this.#byKey, key, follower);
    if (viewer !== undefined) add(this.#byViewer, viewer.uid, follower);
    for (const topic of topics) add(this.#byTopic, topic, follower);
    await Promise.all([...topics].map((topic) => this.#interest.listen(topic)));
  }

  /** Harmless when it is not in. */
  leave(follower: Follower): void {
    const { key, topics, viewer } = follower;
    if (!this.#all.delete(follower)) return;
    remove(this.#byKey, key, follower);
    if (viewer !== undefined) remove(this.#byViewer, viewer.uid, follower);
    for (const topic of topics)
      if (remove(this.#byTopic, topic, follower))
        this.#interest.unlisten(topic);
  }
}

function add(
  map: Map<string, Set<Follower>>,
  name: string,
  follower: Follower,
): void {
  const those = map.get(name) ?? new Set();
  map.set(name, those.add(follower));
}

/** Tells whether none is left. */
function remove(
  map: Map<string, Set<Follower>>,
  name: string,
  follower: Follower,
): boolean {
  const those = map.get(name);
  those?.delete(follower);
  return those?.size === 0 && map.delete(name);
}
