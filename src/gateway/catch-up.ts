// Makes a session live in a group or in its user's personal channels after it connects, joins,
// rejoins or lags. For messages, the steps are always the same. First, the session's position is
// found. Then pages are read from the store, and each page is pushed after a check that the user
// may still see it. Meanwhile, arriving messages are held or left to the store. At the end, the
// held items are pushed. Events follow after the messages, as fast as the client reads.

import { BrokerError } from "../broker/errors.ts";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  type StreamSnapshot,
} from "../broker/model.ts";
import type { ChannelStore, Cluster, MessageStore, StreamStore } from "../broker/ports.ts";
import { mayRead } from "../broker/rights.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import { PacedSteps } from "../lib/paced-steps.ts";
import { piecesOf } from "../lib/pieces.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { TimeSlice } from "../lib/time-slice.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import { Backlog, PERSONAL_CHANNELS, type Scope } from "./backlog.ts";
import type { Groups } from "./groups.ts";
import { concernOf, concernOfAll, readJudged } from "./read-judged.ts";
import { type GroupPosition, type Session, type StreamName, streamName } from "./session.ts";

export interface CatchUpPorts {
  readonly store: Pick<ChannelStore, "joinSeqs"> &
    Pick<MessageStore, "readMessages" | "headSeq"> &
    Pick<StreamStore, "stream" | "activeStreams" | "personalStreamsOf">;
  readonly cluster: Pick<Cluster, "barrier" | "recovery" | "delivered">;
  readonly directory: Pick<SessionDirectory, "endedBy">;
  readonly groups: Groups;
  readonly limits: ReadLimits & {
    readonly maxBufferedBytes: number;
  };
  readonly metrics: Pick<GatewayMetrics, "resumed" | "catchingUp" | "caughtUp">;
  onError(error: unknown, context: string): void;
}

export interface ReadLimits {
  readonly pageMessages: number;
  readonly pageBytes: number;
  /** Maximum number of unread bytes that the client may have when the next page is read. */
  readonly maxUnreadBytes: number;
}

/**
 * Maximum number of concurrent store reads of each kind: pages of messages, the reads of
 * `CatchUps.joinSeqs`, and other reads of join seqs and newest seqs. Thousands of sessions may join
 * a group at once.
 */
const READS_AT_ONCE = 128;
const LOOKUPS_AT_ONCE = 128;
const NO_PAGE = { messages: [], more: false };
/**
 * Time in one turn of the event loop after which no further page of messages is read. With the
 * embedded store, a page takes up to 2 ms.
 */
const PAGES_MS = 2;
const SCOPES_PER_LOOKUP = 2000;
/** Maximum number of ended streams that are read at once for a session that missed their ends. */
const ENDS_PER_READ = 8;
/** Fraction of `maxBufferedBytes` above which a connection counts as lagging. */
const LAG_SHARE = 0.25;

export function lagBytesOf(maxBufferedBytes: number): number {
  return maxBufferedBytes * LAG_SHARE;
}

export class CatchUps {
  readonly #ports: CatchUpPorts;
  /**
   * One lock per session, so that the session catches up with the messages of one group at a time.
   */
  readonly #messageLocks = new KeyedLock();
  /**
   * One lock per session, so that the streams of all its channels are not sent to the session at
   * once.
   */
  readonly #streamLocks = new KeyedLock();
  readonly #reads = new Semaphore(READS_AT_ONCE);
  readonly #pageReads = new Semaphore(READS_AT_ONCE, new PacedSteps(PAGES_MS));
  /**
   * Separate from `#reads`, so that a membership read does not wait for the reads of joining
   * sessions. Such a wait would also delay the missed messages of a group, because they are
   * delivered only after a membership read.
   */
  readonly #membershipReads = new Semaphore(READS_AT_ONCE);
  readonly #lookups = new Semaphore(LOOKUPS_AT_ONCE);
  readonly #maxUnreadBytes: number;

  constructor(ports: CatchUpPorts) {
    this.#ports = ports;
    this.#maxUnreadBytes = lagBytesOf(ports.limits.maxBufferedBytes) / 2;
  }

  /**
   * Makes a session live. In a scope (a group, or all personal channels) with missed messages, the
   * session becomes live after these messages have been pushed. In all other scopes, it becomes
   * live at once. `missedPersonal` contains the personal channels with missed messages.
   * `streamKeys` comes from `JoinState`.
   */
  async connect(
    session: Session,
    missedPersonal: readonly ChannelRef[],
    streamKeys: readonly ChannelKey[],
  ): Promise<void> {
    const { groups } = this.#ports;
    const behind: Backlog[] = [];
    const live: Backlog[] = [];
    const slice = groups.slice();
    for (const id of session.joining ?? []) {
      if (slice.shouldYield()) await slice.yield();
      const group = groups.get(id);
      const backlog = group?.backlogOf(session);
      if (group === undefined || backlog === undefined || backlog.isOver) continue;
      if (backlog.isResumed && backlog.lacksMessages(group.key, group.lastSeq))
        behind.push(backlog);
      else {
        receiveMessages(backlog);
        live.push(backlog);
      }
    }
    const personal = PERSONAL_CHANNELS.backlogOf(session);
    if (personal !== undefined && missedPersonal.length === 0 && !personal.isOver) {
      receiveMessages(personal);
      live.push(personal);
    }
    if (live.length > 0) this.#receiveEvents(session, live, streamKeys);
    if (personal !== undefined && missedPersonal.length > 0)
      await this.#catchUp(personal, missedPersonal);
    for (const backlog of behind) {
      if (slice.shouldYield()) await slice.yield();
      await this.#catchUp(backlog, channelsOf(backlog));
    }
  }

  /**
   * Switches a session to live delivery for a group. Also resolves if the user is not a member.
   */
  async join(session: Session, channelId: string): Promise<void> {
    const { metrics } = this.#ports;
    metrics.catchingUp(1);
    try {
      await this.#messageLocks.run(session.sessionId, () => this.#join(session, channelId));
    } finally {
      metrics.catchingUp(-1);
    }
  }

  /**
   * Does the same as `join`, but checks the membership first, because a removed user is rarely a
   * member again.
   */
  async rejoin(session: Session, channelId: string): Promise<void> {
    const [joinSeq] = await this.joinSeqs(channelId, [session.uid]);
    if (joinSeq !== undefined) await this.join(session, channelId);
  }

  joinSeqs(channelId: string, uids: readonly string[]): Promise<readonly (number | undefined)[]> {
    const { store } = this.#ports;
    return this.#membershipReads.run(() => store.joinSeqs(channelId, uids));
  }

  /** Withholds events from a session whose connection lags, until the session has caught up. */
  lag(session: Session): void {
    if (session.ended !== undefined) return;
    void this.#endOnFailure(session, async () => {
      const { groups } = this.#ports;
      const slice = groups.slice();
      const backlogs: Backlog[] = [];
      const withhold = (scope: Scope) => {
        if (scope.backlogOf(session) !== undefined) return;
        const backlog = new Backlog(session, scope, "streams");
        scope.withholdEvents(backlog);
        backlogs.push(backlog);
      };
      withhold(PERSONAL_CHANNELS);
      for (const group of groups.followedBy(session)) {
        withhold(group);
        if (slice.shouldYield()) await slice.yield();
        // A session that has ended needs no recovery, because each group drops the backlog when the
        // session leaves.
        if (session.ended !== undefined) return;
      }
      await this.#recover(session, backlogs, slice);
    });
  }

  recordSnapshot(session: Session, snapshot: StreamSnapshot | undefined): void {
    if (snapshot === undefined) return;
    const { id, type } = snapshot.channel;
    const scope = type === GROUP_CHANNEL ? this.#ports.groups.get(id) : PERSONAL_CHANNELS;
    scope?.backlogOf(session)?.recordSnapshot(snapshot);
  }

  /**
   * Joins a group. Holds all arriving messages and events from the start, because some events are
   * not stored.
   */
  async #join(session: Session, channelId: string): Promise<void> {
    if (session.ended !== undefined || session.follows(channelId)) return;
    if (!session.mayReadGroup(channelId)) return;
    const { groups } = this.#ports;
    const backlog = groups.addJoining(session, channelId);
    backlog.hold();
    try {
      await groups.listen(channelId);
      if (await this.#setStart(backlog, channelId))
        await this.#catchUp(backlog, channelsOf(backlog));
    } finally {
      if (!session.follows(channelId)) groups.removeSession(session, channelId);
    }
  }

  /**
   * Sets the position at which the session starts in the group. Returns false if the session does
   * not join.
   */
  async #setStart(backlog: Backlog, channelId: string): Promise<boolean> {
    const { store, cluster } = this.#ports;
    const { session } = backlog;
    const key = channelKey({ id: channelId, type: GROUP_CHANNEL }, session.uid);
    const [joinSeq] = await this.#reads.run(() => store.joinSeqs(channelId, [session.uid]));
    if (joinSeq === undefined || backlog.isOver) return false;
    const leftAt =
      session.takeGroupPosition(channelId) ?? (await this.#startOfWidened(session, channelId, key));
    if (backlog.isOver) return false;
    backlog.advance(key, leftAt?.seq ?? joinSeq);
    if (leftAt === undefined) return true;
    backlog.isResumed = leftAt.isResumed;
    // After the barrier, all messages and events that were sent while the user was not a member
    // have arrived, and `forgetGroup` drops them. The stored messages that the session may see are
    // then read from the store.
    await cluster.barrier();
    backlog.forgetGroup(channelId);
    const isAhead = leftAt.seq > joinSeq;
    const headSeq = isAhead ? await this.#reads.run(() => store.headSeq(key)) : 0;
    // True if a fail-over lost messages that the session has. Later messages may have reused the
    // lost seqs, so the session then starts at `joinSeq`.
    const isLost = isAhead && leftAt.seq > headSeq;
    if (isLost || !(isAhead || leftAt.isResumed)) backlog.advance(key, joinSeq);
    return true;
  }

  /**
   * Returns the position of the group's newest message if the session's former rights did not
   * include the group, otherwise `undefined`. The session starts at this position, because its user
   * may have become a member a million messages earlier.
   */
  async #startOfWidened(
    session: Session,
    channelId: string,
    key: ChannelKey,
  ): Promise<GroupPosition | undefined> {
    const { formerRights } = session;
    if (mayRead(formerRights, { id: channelId, type: GROUP_CHANNEL })) return undefined;
    const seq = await this.#reads.run(() => this.#ports.store.headSeq(key));
    return { seq, isResumed: true };
  }

  async #catchUp(backlog: Backlog, channels: readonly ChannelRef[]): Promise<void> {
    for (const channel of channels) await this.#readToEnd(backlog, channel);
    if (backlog.isOver) return;
    // After the barrier, the messages that were read from the store have also arrived live. The
    // live copies are skipped.
    if (channels.length > 0) await this.#ports.cluster.barrier();
    this.#goLive(backlog);
  }

  #goLive(backlog: Backlog): void {
    if (backlog.isOver) return;
    receiveMessages(backlog);
    this.#receiveEvents(backlog.session, [backlog]);
  }

  /**
   * Makes a session live for events in these scopes, in which it is already live for messages.
   * `streamKeys` are the channels with an active stream, if they are known.
   */
  #receiveEvents(
    session: Session,
    backlogs: readonly Backlog[],
    streamKeys?: readonly ChannelKey[],
  ): void {
    const { metrics } = this.#ports;
    metrics.catchingUp(1);
    const step = () => this.#startEvents(session, backlogs, streamKeys);
    void this.#endOnFailure(session, step).then(() => metrics.catchingUp(-1));
  }

  /**
   * Pushes all missed messages of a channel. Holds arriving messages only while it reads a page
   * that may be the last one.
   */
  async #readToEnd(backlog: Backlog, channel: ChannelRef): Promise<void> {
    const { maxUnreadBytes } = this.#ports.limits;
    const { session } = backlog;
    do {
      await session.readyForPage(maxUnreadBytes);
      backlog.hold();
      while (await this.#readPage(backlog, channel)) {
        backlog.leaveToStore();
        await session.readyForPage(maxUnreadBytes);
      }
    } while (!backlog.isHolding && !backlog.isOver);
  }

  /** Pushes one page of missed messages. Returns true if another page must be read. */
  async #readPage(backlog: Backlog, channel: ChannelRef): Promise<boolean> {
    const { store, cluster, limits, metrics } = this.#ports;
    const { session } = backlog;
    const key = channelKey(channel, session.uid);
    const afterSeq = backlog.seqOf(key);
    if (backlog.isOver) return false;
    const headSeq = await this.#reads.run(() => store.headSeq(key));
    if (headSeq <= afterSeq) return false;
    const concerns = concernOf(session.uid, channel);
    const { messages, more } = await readJudged(cluster, concerns, () =>
      this.#pageReads.run(() =>
        backlog.isOver
          ? NO_PAGE // the session ended while it waited
          : store.readMessages(key, {
              fromSeq: afterSeq + 1,
              toSeq: headSeq,
              limit: limits.pageMessages,
              maxBytes: limits.pageBytes,
              reverse: false,
            }),
      ),
    );
    if (backlog.isOver) return false;
    // The page is not pushed if the user may not see it. If the user has become a member again, the
    // next call reads the same range.
    if (!(await this.#mayRead(session, channel))) return true;
    if (backlog.isOver) return false;
    const last = messages.at(-1);
    const throughSeq = more ? (last?.messageSeq ?? afterSeq) : headSeq;
    backlog.advance(key, throughSeq, last?.messageId);
    metrics.resumed(messages.length);
    session.rate?.pushedPage(messages.length, payloadBytes(messages));
    session.push({
      kind: "messages",
      channel,
      afterSeq,
      throughSeq,
      messages,
      toUid: session.uid,
    });
    if (last !== undefined && channel.type !== GROUP_CHANNEL) session.noteRead(key, last);
    for (const { stream } of messages) if (stream !== undefined) backlog.recordSnapshot(stream);
    return more;
  }

  /**
   * Returns true if the user may see the channel. Must be called after each read, because the event
   * for an earlier removal may not have arrived yet.
   */
  async #mayRead(session: Session, { id, type }: ChannelRef): Promise<boolean> {
    if (type !== GROUP_CHANNEL) return true;
    const { store, cluster } = this.#ports;
    const [joinSeq] = await this.#reads.run(() => store.joinSeqs(id, [session.uid]));
    if (joinSeq !== undefined) return true;
    // After the barrier, the removal has been delivered and has ended the catch-up, unless the user
    // is a member again.
    await cluster.barrier();
    return false;
  }

  async #startEvents(
    session: Session,
    backlogs: readonly Backlog[],
    streamKeys: readonly ChannelKey[] | undefined,
  ): Promise<void> {
    const { cluster, groups } = this.#ports;
    const slice = groups.slice();
    const behind: Backlog[] = [];
    for (const piece of piecesOf(backlogs, SCOPES_PER_LOOKUP)) {
      const keys = streamKeys ?? (await this.#activeStreamKeys(session, piece));
      const activeScopes = new Set(keys.map(scopeKeyOf));
      const isBehind = (backlog: Backlog) =>
        backlog.mustRead || activeScopes.has(backlog.scope.key) || this.#isLagging(session);
      const upToDate: Backlog[] = [];
      for (const backlog of piece) (isBehind(backlog) ? behind : upToDate).push(backlog);
      for (const backlog of behind) backlog.leaveStreamsToStore();
      if (upToDate.length > 0) await cluster.barrier();
      for (const backlog of upToDate) {
        if (slice.shouldYield()) await slice.yield();
        if (backlog.mustRead) behind.push(backlog);
        else finish(backlog);
      }
    }
    if (behind.length === 0) return;
    await this.#streamLocks.run(session.sessionId, async () => {
      for (const backlog of behind) {
        await session.writable(this.#maxUnreadBytes);
        await this.#catchUpStreams(backlog);
      }
    });
  }

  async #recover(session: Session, backlogs: readonly Backlog[], slice: TimeSlice): Promise<void> {
    await this.#streamLocks.run(session.sessionId, async () => {
      for (const backlog of backlogs) {
        if (slice.shouldYield()) await slice.yield();
        if (this.#isLagging(session)) await session.writable(this.#maxUnreadBytes);
        if (backlog.isEmpty) finish(backlog);
        else await this.#catchUpStreams(backlog);
      }
    });
  }

  /**
   * Pushes the parts of the scope's streams that the client lacks. Reads only a few streams at a
   * time, so that the client can read them before further streams are pushed.
   */
  async #catchUpStreams(backlog: Backlog): Promise<void> {
    await this.#pushMissedEnds(backlog);
    if (backlog.isJoining) await this.#pushActiveStreams(backlog);
    for (const name of backlog.unread.slice(0, -1)) {
      const snapshot = await this.#readSynced(name);
      if (backlog.isOver) return;
      backlog.advanceStream(name, snapshot);
      this.#ports.metrics.caughtUp(1);
      await backlog.session.writable(this.#maxUnreadBytes);
    }
    if (!backlog.isOver) await this.#readRemaining(backlog);
  }

  async #pushMissedEnds(backlog: Backlog): Promise<void> {
    const { session } = backlog;
    for (const names of piecesOf(backlog.missedEnds, ENDS_PER_READ)) {
      await session.readyForPage(this.#maxUnreadBytes);
      const snapshots = await Promise.all(names.map((name) => this.#readStream(name)));
      await this.#ports.cluster.barrier();
      if (backlog.isOver) return;
      for (const [at, name] of names.entries()) backlog.pushMissedEnd(name, snapshots[at]);
      this.#ports.metrics.caughtUp(names.length);
      const units = snapshots.reduce((sum, snapshot) => sum + (snapshot?.text.length ?? 0), 0);
      session.rate?.pushedPage(names.length, units);
    }
  }

  /** Pushes the active streams except the first one, which `#readRemaining` pushes. */
  async #pushActiveStreams(backlog: Backlog): Promise<void> {
    for (const name of (await this.#activeStreams(backlog.session, [backlog])).slice(1)) {
      const snapshot = await this.#readSynced(name);
      if (backlog.isOver) return;
      if (snapshot?.state === "active") backlog.pushActiveStream(snapshot);
      await backlog.session.writable(this.#maxUnreadBytes);
    }
  }

  /** Pushes the remaining streams. Keeps all events during the reads, so that none is missed. */
  async #readRemaining(backlog: Backlog): Promise<void> {
    backlog.keepAll();
    const active = backlog.isJoining ? await this.#activeStreams(backlog.session, [backlog]) : [];
    const isRead = new Set(active.map(streamName));
    const remaining: StreamSnapshot[] = [];
    let names = backlog.unread;
    do {
      const snapshots = await Promise.all(names.map((name) => this.#readStream(name)));
      // After the barrier, the events that the snapshots contain have arrived, and are skipped.
      await this.#ports.cluster.barrier();
      for (const snapshot of snapshots) if (snapshot !== undefined) remaining.push(snapshot);
      for (const name of names) isRead.add(streamName(name));
      // During the reads, further streams may have ended, or a reply may have contained the state
      // of a further stream. These streams must be read, too.
      names = backlog.unread.filter((name) => !isRead.has(streamName(name)));
    } while (names.length > 0);
    const streams = finish(backlog, active, remaining);
    if (streams > 0) this.#ports.metrics.caughtUp(streams);
  }

  /** Reads a stream, then waits until all member removals that preceded the read are delivered. */
  async #readSynced(name: StreamName): Promise<StreamSnapshot | undefined> {
    const snapshot = await this.#readStream(name);
    await this.#ports.cluster.barrier();
    return snapshot;
  }

  async #readStream({ key, clientMsgNo }: StreamName): Promise<StreamSnapshot | undefined> {
    const { store, cluster } = this.#ports;
    return readJudged(cluster, concernOfAll(key), () => store.stream(key, clientMsgNo));
  }

  #isLagging({ connection }: Session): boolean {
    return connection.bufferedBytes() > this.#maxUnreadBytes;
  }

  async #activeStreamKeys(
    session: Session,
    backlogs: readonly Backlog[],
  ): Promise<readonly ChannelKey[]> {
    const streams = await this.#lookups.run(() => this.#activeStreams(session, backlogs));
    return streams.map(({ key }) => key);
  }

  async #activeStreams(
    { uid }: Session,
    backlogs: readonly Backlog[],
  ): Promise<readonly StreamSnapshot[]> {
    const { store } = this.#ports;
    const keys = backlogs.flatMap(({ scope: { key } }) => key ?? []);
    return keys.length > 0 ? store.activeStreams(keys) : store.personalStreamsOf(uid);
  }

  /**
   * Runs the step. If the step fails, ends the session, so that the client reconnects and resumes.
   */
  async #endOnFailure(session: Session, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (!(error instanceof BrokerError))
        this.#ports.onError(error, "Could not finish a session's catch-up; the session is closed");
      const ended = await this.#ports.directory.endedBy(session);
      session.end(ended ?? "unavailable");
    }
  }
}

function payloadBytes(messages: readonly Message[]): number {
  return messages.reduce((sum, { payload }) => sum + payload.length, 0);
}

function finish(
  backlog: Backlog,
  active: readonly StreamSnapshot[] = [],
  read: readonly StreamSnapshot[] = [],
): number {
  if (backlog.isOver) return 0;
  const streams = backlog.flush(active, read);
  backlog.scope.goLive(backlog);
  return streams;
}

/** Makes the session live for messages. From now on, the backlog keeps all of the session's events. */
function receiveMessages(backlog: Backlog): void {
  backlog.scope.add(backlog);
  backlog.keepAll();
}

function scopeKeyOf(key: ChannelKey): ChannelKey | undefined {
  return key.startsWith(`${GROUP_CHANNEL}:`) ? key : PERSONAL_CHANNELS.key;
}

function channelsOf({ scope: { key } }: Backlog): readonly ChannelRef[] {
  return key === undefined ? [] : [{ id: key.slice(2), type: GROUP_CHANNEL }];
}
