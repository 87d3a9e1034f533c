// Makes a session live in a group or in the personal channels of its user, when it connects, joins,
// rejoins or has lagged. The steps are always the same: find the position, read from the store in
// pages while arriving messages are held or left to the store, check that the user may still see
// each page, push what was held, go live. Messages go first; events follow as fast as the client
// reads. The state of each catch-up is in its backlog; this file only decides which one runs when.

import { BrokerError } from "../broker/errors.ts";
import {
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  type StreamSnapshot,
} from "../broker/model.ts";
import type { ChannelStore, Cluster, MessageStore, StreamStore } from "../broker/ports.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { TimeSlice } from "../lib/time-slice.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import { Backlog, PERSONAL, type Place } from "./backlog.ts";
import type { Groups } from "./groups.ts";
import { concernOf, concernOfAll, readJudged } from "./read-judged.ts";
import type { Session, StreamName } from "./session.ts";

export interface CatchUpParts {
  readonly store: Pick<ChannelStore, "joinSeqs"> &
    Pick<MessageStore, "readMessages" | "headSeq"> &
    Pick<StreamStore, "stream" | "activeStream" | "personalStreamsOf">;
  readonly cluster: Pick<Cluster, "barrier" | "recovery" | "delivered">;
  readonly directory: Pick<SessionDirectory, "endedBy">;
  readonly groups: Groups;
  readonly limits: ReadLimits & {
    /** See `SocketEndpoint`. */
    readonly maxBufferedBytes: number;
  };
  readonly metrics: Pick<GatewayMetrics, "resumed" | "catchingUp" | "caughtUp">;
  /** Reports an unexpected error, which is a bug. `context` is the log message. */
  onError(error: unknown, what: string): void;
}

export interface ReadLimits {
  /** Maximum number of messages that are read and pushed as one page. */
  readonly pageMessages: number;
  readonly pageBytes: number;
  /** Number of unread bytes to which the client must get down before the next page is read. */
  readonly maxUnreadBytes: number;
}

/** Maximum number of concurrent store reads. Thousands of sessions may join a group at once. */
const READS_AT_ONCE = 128;
/**
 * Maximum number of concurrent look-ups of active streams. Thousands of sessions may each join
 * thousands of groups at once.
 */
const LOOKS_AT_ONCE = 512;
/** Fraction of `maxBufferedBytes` above which a connection counts as lagging. */
const LAG_SHARE = 0.25;

/**
 * Returns the number of unread bytes above which a connection counts as lagging. Stream events for
 * a lagging connection are merged and sent later.
 */
export function lagBytesOf(maxBufferedBytes: number): number {
  return maxBufferedBytes * LAG_SHARE;
}

export class CatchUps {
  readonly #parts: CatchUpParts;
  /** One lock per session, so that it catches up with the messages of one group at a time. */
  readonly #messageTurns = new KeyedLock();
  /**
   * One lock per session. Without it, a session would be sent the streams of all its channels at
   * the same time.
   */
  readonly #streamTurns = new KeyedLock();
  readonly #reads = new Semaphore(READS_AT_ONCE);
  /**
   * Permits for `joinSeqs`, separate from `#reads`: the delivery of missed messages waits for these
   * reads.
   */
  readonly #judgements = new Semaphore(READS_AT_ONCE);
  readonly #looks = new Semaphore(LOOKS_AT_ONCE);
  /**
   * Number of unread bytes to which the client must get down before the session catches up with
   * streams.
   */
  readonly #maxUnreadBytes: number;

  constructor(parts: CatchUpParts) {
    this.#parts = parts;
    this.#maxUnreadBytes = lagBytesOf(parts.limits.maxBufferedBytes) / 2;
  }

  /**
   * Starts holding messages of the session's personal channels until `connect`. Stream events are
   * not held, because they can be long; they are read from the store.
   */
  enter(session: Session): void {
    session.personal = new Backlog(session, PERSONAL, "holding");
  }

  /**
   * Makes a session live after `enter`. In its personal channels it becomes live when
   * `resumedPersonal` are read; in the groups it is about to join at once, or after it has read
   * what it missed if it resumes there. Rejects with `unavailable`.
   */
  async connect(session: Session, resumedPersonal: readonly ChannelRef[]): Promise<void> {
    const { groups } = this.#parts;
    const resumed: Backlog[] = [];
    const slice = groups.slice();
    for (const id of session.joining ?? []) {
      if (slice.isUsedUp()) await slice.rest();
      const backlog = groups.get(id)?.backlogOf(session);
      if (backlog?.isResumed) resumed.push(backlog);
      else if (backlog !== undefined) this.#goLive(backlog);
    }
    const personal = PERSONAL.backlogOf(session);
    if (personal !== undefined) await this.#run(personal, resumedPersonal);
    for (const backlog of resumed) {
      if (slice.isUsedUp()) await slice.rest();
      await this.#run(backlog, channelsOf(backlog));
    }
  }

  /**
   * Makes a live session live in one more group, starting where its user became a member or where
   * the session was when it left. Resolves when that is done, and also if the user is not a member
   * or is removed meanwhile. Rejects with `unavailable`; the call may then be repeated.
   */
  async join(session: Session, channelId: string): Promise<void> {
    const { metrics } = this.#parts;
    metrics.catchingUp(1);
    try {
      await this.#messageTurns.run(session.sessionId, () => this.#join(session, channelId));
    } finally {
      metrics.catchingUp(-1);
    }
  }

  /**
   * Joins like `join`, but checks the membership first and holds nothing until then. Nearly all
   * users that were removed from a group are not members any more.
   */
  async rejoin(session: Session, channelId: string): Promise<void> {
    const [joinSeq] = await this.joinSeqs(channelId, [session.uid]);
    if (joinSeq !== undefined) await this.join(session, channelId);
  }

  /** See `ChannelStore`. The number of concurrent reads is limited. */
  joinSeqs(channelId: string, uids: readonly string[]): Promise<readonly (number | undefined)[]> {
    const { store } = this.#parts;
    return this.#judgements.run(() => store.joinSeqs(channelId, uids));
  }

  /**
   * Withholds events from a session whose connection lags, until its client has read enough and the
   * session has caught up with the events.
   */
  lag(session: Session): void {
    if (session.ended !== undefined) return;
    void this.#guarded(session, async () => {
      const { groups } = this.#parts;
      const slice = groups.slice();
      const fallen: Backlog[] = [];
      const fall = (place: Place) => {
        if (place.backlogOf(session) !== undefined) return;
        const backlog = new Backlog(session, place, "streams");
        place.fallBehind(backlog);
        fallen.push(backlog);
      };
      fall(PERSONAL);
      for (const group of groups.followedBy(session)) {
        fall(group);
        if (slice.isUsedUp()) await slice.rest();
        // The groups drop these backlogs when the session leaves them.
        if (session.ended !== undefined) return;
      }
      await this.#recover(session, fallen, slice);
    });
  }

  /**
   * Records that a message or a reply contained the state of a stream. Its next event follows that
   * state.
   */
  shown(session: Session, snapshot: StreamSnapshot | undefined): void {
    if (snapshot === undefined) return;
    const { id, type } = snapshot.channel;
    const place = type === GROUP_CHANNEL ? this.#parts.groups.get(id) : PERSONAL;
    place?.backlogOf(session)?.shown(snapshot);
  }

  /**
   * Joins a group. What arrives is held from the start, because events outside of streams are not
   * stored.
   */
  async #join(session: Session, channelId: string): Promise<void> {
    if (session.ended !== undefined || session.follows(channelId)) return;
    const { groups } = this.#parts;
    const backlog = groups.expect(session, channelId);
    backlog.hold();
    try {
      await groups.listen(channelId);
      if (await this.#begin(backlog, channelId)) await this.#run(backlog, channelsOf(backlog));
    } finally {
      if (!session.follows(channelId)) groups.takeOut(session, channelId);
    }
  }

  /**
   * Sets the position from which the session reads the group: where it was when it left, or where
   * its user became a member. Returns false if the user is not a member.
   */
  async #begin(backlog: Backlog, channelId: string): Promise<boolean> {
    const { store, cluster } = this.#parts;
    const { session } = backlog;
    const key = channelKey({ id: channelId, type: GROUP_CHANNEL }, session.uid);
    const [joinSeq] = await this.#reads.run(() => store.joinSeqs(channelId, [session.uid]));
    if (joinSeq === undefined || backlog.isOver) return false;
    const had = session.takeHad(channelId);
    backlog.advance(key, had?.seq ?? joinSeq);
    if (had === undefined) return true;
    backlog.isResumed = had.isResumed;
    // After the barrier, everything that was sent while the user was not a member has arrived and
    // can be dropped. What was stored since is read.
    await cluster.barrier();
    backlog.forgetGroup(channelId);
    const isAhead = had.seq > joinSeq;
    const headSeq = isAhead ? await this.#reads.run(() => store.headSeq(key)) : 0;
    // A fail-over lost messages; other messages have their seqs or will get them.
    const isLost = isAhead && had.seq > headSeq;
    if (isLost || !(isAhead || had.isResumed)) backlog.advance(key, joinSeq);
    return true;
  }

  /** Catches up with these channels of the scope, then goes live. */
  async #run(backlog: Backlog, channels: readonly ChannelRef[]): Promise<void> {
    for (const channel of channels) await this.#readToEnd(backlog, channel);
    if (backlog.isOver) return;
    // After the barrier, the messages that were read have also arrived, and are skipped as
    // delivered.
    if (channels.length > 0) await this.#parts.cluster.barrier();
    this.#goLive(backlog);
  }

  /**
   * Makes the session live for messages at once, and for events after the state of all streams is
   * known.
   */
  #goLive(backlog: Backlog): void {
    if (backlog.isOver) return;
    const { metrics } = this.#parts;
    backlog.place.add(backlog);
    metrics.catchingUp(1);
    void this.#guarded(backlog.session, () => this.#startStreams(backlog)).then(() =>
      metrics.catchingUp(-1),
    );
  }

  /**
   * Reads the channel to its end. Messages that arrive meanwhile are held only while at most one
   * page is missing. Otherwise they are left to the store, so that a long catch-up uses little
   * memory.
   */
  async #readToEnd(backlog: Backlog, channel: ChannelRef): Promise<void> {
    const { maxUnreadBytes } = this.#parts.limits;
    const { session } = backlog;
    do {
      await session.writable(maxUnreadBytes);
      backlog.hold();
      while (await this.#readPage(backlog, channel)) {
        backlog.leaveToStore();
        await session.writable(maxUnreadBytes);
      }
    } while (!backlog.isHolding && !backlog.isOver);
  }

  /**
   * Pushes the next page and returns true if there are more. The range of a page includes expired
   * messages, also at its end.
   */
  async #readPage(backlog: Backlog, channel: ChannelRef): Promise<boolean> {
    const { store, cluster, limits, metrics } = this.#parts;
    const { session } = backlog;
    const key = channelKey(channel, session.uid);
    const afterSeq = backlog.seqOf(key);
    if (backlog.isOver) return false;
    const headSeq = await this.#reads.run(() => store.headSeq(key));
    if (headSeq <= afterSeq) return false;
    const concerns = concernOf(session.uid, channel);
    const { messages, more } = await readJudged(cluster, concerns, () =>
      this.#reads.run(() =>
        store.readMessages(key, {
          fromSeq: afterSeq + 1,
          toSeq: headSeq,
          limit: limits.pageMessages,
          maxBytes: limits.pageBytes,
          reverse: false,
        }),
      ),
    );
    if (backlog.isOver) return false;
    // The page is read again, unless the catch-up is over.
    if (!(await this.#mayRead(session, channel))) return true;
    if (backlog.isOver) return false;
    const last = messages.at(-1);
    const throughSeq = more ? (last?.messageSeq ?? afterSeq) : headSeq;
    backlog.advance(key, throughSeq, last?.messageId);
    metrics.resumed(messages.length);
    session.push({
      kind: "messages",
      channel,
      afterSeq,
      throughSeq,
      messages,
    });
    if (last !== undefined && channel.type !== GROUP_CHANNEL) session.noteRead(key, last);
    for (const { stream } of messages) if (stream !== undefined) backlog.shown(stream);
    return more;
  }

  /**
   * Returns true if the user may still read the channel. Must be called after a read: an earlier
   * removal may not have been delivered to this node yet.
   */
  async #mayRead(session: Session, { id, type }: ChannelRef): Promise<boolean> {
    if (type !== GROUP_CHANNEL) return true;
    const { store, cluster } = this.#parts;
    const [joinSeq] = await this.#reads.run(() => store.joinSeqs(id, [session.uid]));
    if (joinSeq !== undefined) return true;
    // After the barrier, the removal is delivered and has ended the catch-up, unless the user is
    // back.
    await cluster.barrier();
    return false;
  }

  /**
   * Makes the session live for events, at once if nothing is pending, as in nearly every channel.
   */
  async #startStreams(backlog: Backlog): Promise<void> {
    const { session } = backlog;
    backlog.keepAll();
    const active = await this.#looks.run(() => this.#active(backlog));
    const owesNothing = active.length === 0 && !backlog.mustRead;
    if (owesNothing && !this.#lags(session)) {
      await this.#parts.cluster.barrier();
      finish(backlog);
      return;
    }
    backlog.leaveStreamsToStore();
    await this.#streamTurns.run(session.sessionId, async () => {
      await session.writable(this.#maxUnreadBytes);
      await this.#takeUpStreams(backlog);
    });
  }

  async #recover(session: Session, fallen: readonly Backlog[], slice: TimeSlice): Promise<void> {
    await this.#streamTurns.run(session.sessionId, async () => {
      for (const backlog of fallen) {
        if (slice.isUsedUp()) await slice.rest();
        if (this.#lags(session)) await session.writable(this.#maxUnreadBytes);
        if (backlog.isEmpty) finish(backlog);
        else await this.#takeUpStreams(backlog);
      }
    });
  }

  /**
   * Catches up with the streams that must be read. All but the last are read one by one, so that
   * the client can read each stream before the next one is pushed.
   */
  async #takeUpStreams(backlog: Backlog): Promise<void> {
    if (backlog.isJoining) await this.#present(backlog);
    for (const name of backlog.unread.slice(0, -1)) {
      const snapshot = await this.#settled(name);
      if (backlog.isOver) return;
      backlog.advanceStream(name, snapshot);
      this.#parts.metrics.caughtUp(1);
      await backlog.session.writable(this.#maxUnreadBytes);
    }
    if (!backlog.isOver) await this.#readLast(backlog);
  }

  /**
   * Pushes all active streams except the first, which `#readLast` pushes. In the personal channels
   * many streams may be active.
   */
  async #present(backlog: Backlog): Promise<void> {
    for (const name of (await this.#active(backlog)).slice(1)) {
      const snapshot = await this.#settled(name);
      if (backlog.isOver) return;
      if (snapshot?.state === "active") backlog.present(snapshot);
      await backlog.session.writable(this.#maxUnreadBytes);
    }
  }

  /**
   * Reads the remaining snapshots while all events are kept, so that no event is missing between
   * the snapshots and the kept events.
   */
  async #readLast(backlog: Backlog): Promise<void> {
    backlog.keepAll();
    const active = backlog.isJoining ? await this.#active(backlog) : [];
    const read = await Promise.all(backlog.unread.map((name) => this.#stream(name)));
    // After the barrier, the events that the snapshots contain have arrived, and are skipped.
    await this.#parts.cluster.barrier();
    const found = read.filter((one) => one !== undefined);
    const streams = finish(backlog, active, found);
    if (streams > 0) this.#parts.metrics.caughtUp(streams);
  }

  /**
   * Reads a stream, then waits until removals from before the read are delivered. If the user was
   * removed, the session has left by then.
   */
  async #settled(name: StreamName): Promise<StreamSnapshot | undefined> {
    const found = await this.#stream(name);
    await this.#parts.cluster.barrier();
    return found;
  }

  async #stream({ key, clientMsgNo }: StreamName): Promise<StreamSnapshot | undefined> {
    const { store, cluster } = this.#parts;
    return readJudged(cluster, concernOfAll(key), () => store.stream(key, clientMsgNo));
  }

  #lags({ connection }: Session): boolean {
    return connection.bufferedBytes() > this.#maxUnreadBytes;
  }

  async #active({ place, session }: Backlog): Promise<readonly StreamSnapshot[]> {
    const { store } = this.#parts;
    if (place.key === undefined) return store.personalStreamsOf(session.uid);
    const found = await store.activeStream(place.key);
    return found === undefined ? [] : [found];
  }

  /**
   * Runs a step of a catch-up. If the step fails, the session ends and its client reconnects and
   * resumes.
   */
  async #guarded(session: Session, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (!(error instanceof BrokerError))
        this.#parts.onError(error, "A session could not catch up");
      const ended = await this.#parts.directory.endedBy(session);
      session.end(ended ?? "unavailable");
    }
  }
}

/**
 * Pushes what is withheld and makes the session live for events, in one turn. Returns the number of
 * streams that were caught up with from the store.
 */
function finish(
  backlog: Backlog,
  active: readonly StreamSnapshot[] = [],
  read: readonly StreamSnapshot[] = [],
): number {
  if (backlog.isOver) return 0;
  const streams = backlog.settle(active, read);
  backlog.place.goLive(backlog);
  return streams;
}

function channelsOf({ place: { key } }: Backlog): readonly ChannelRef[] {
  return key === undefined ? [] : [{ id: key.slice(2), type: GROUP_CHANNEL }];
}
