// How a session becomes live, in a group or in all personal channels of its user: it resumes there,
// joins, was removed and is back, or its socket lagged. Always the same steps: a position, bounded
// reads of the store while what comes is held or left to the store, each read judged before it is
// shown, what was held, live. Messages go first; events follow at the pace the client takes them.
// Backlogs have the state of each; here is only whose turn it is.

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
    /** Of a connection. */
    readonly maxBufferedBytes: number;
  };
  readonly metrics: Pick<GatewayMetrics, "resumed" | "catchingUp" | "caughtUp">;
  /** A bug surfaced; `what` says where. */
  onError(error: unknown, what: string): void;
}

export interface ReadLimits {
  /** Most messages and bytes read and pushed in one run. */
  readonly pageMessages: number;
  readonly pageBytes: number;
  /** The next page waits until no more than this is unread by the client. */
  readonly maxUnreadBytes: number;
}

/** Reads of groups that live sessions join: thousands may be added to a group at once. */
const READS_AT_ONCE = 128;
/** Looks for active streams: thousands may join thousands of groups at once. */
const LOOKS_AT_ONCE = 512;
/** Of the bytes that cut a connection off when they wait unread, the part from which on it lags. */
const LAG_SHARE = 0.25;

/**
 * From so many unread bytes on a connection lags: what of streams it has not been sent comes merged
 * later.
 */
export function lagBytesOf(maxBufferedBytes: number): number {
  return maxBufferedBytes * LAG_SHARE;
}

export class CatchUps {
  readonly #parts: CatchUpParts;
  /** By session: it catches up with the messages of one group at a time. */
  readonly #messageTurns = new KeyedLock();
  /**
   * By session: catching up with the streams of several channels at once would push all at once.
   */
  readonly #streamTurns = new KeyedLock();
  readonly #reads = new Semaphore(READS_AT_ONCE);
  /** Of the members that others wait for: those that wait hold none of its permits. */
  readonly #judgements = new Semaphore(READS_AT_ONCE);
  readonly #looks = new Semaphore(LOOKS_AT_ONCE);
  /** A session catches up with streams when no more than this is unread by its client. */
  readonly #maxUnreadBytes: number;

  constructor(parts: CatchUpParts) {
    this.#parts = parts;
    this.#maxUnreadBytes = lagBytesOf(parts.limits.maxBufferedBytes) / 2;
  }

  /**
   * From now on what comes in the session's personal channels is held, until `connect`; streams,
   * which may be long, are left to the store.
   */
  enter(session: Session): void {
    session.personal = new Backlog(session, PERSONAL, "holding");
  }

  /**
   * Makes a session live that entered: in its personal channels after it read these of them, and in
   * the groups it is about to join, at once or where it resumes after it read what it missed.
   * Rejects `unavailable`.
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
   * Makes a live session live in one more group, from where its user became a member or it was
   * before. Resolves when that is done, or its user is not a member, or was removed meanwhile.
   * Rejects `unavailable`; may be asked again.
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
   * The same, holding nothing for users who are not members, as nearly all that were removed from
   * the group.
   */
  async rejoin(session: Session, channelId: string): Promise<void> {
    const [joinSeq] = await this.joinSeqs(channelId, [session.uid]);
    if (joinSeq !== undefined) await this.join(session, channelId);
  }

  /** See `ChannelStore`. Few are read at once. */
  joinSeqs(channelId: string, uids: readonly string[]): Promise<readonly (number | undefined)[]> {
    const { store } = this.#parts;
    return this.#judgements.run(() => store.joinSeqs(channelId, uids));
  }

  /**
   * The connection of the session lags: from now on events are withheld, until it has drained and
   * caught up with them.
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
        if (session.ended !== undefined) return; // its groups forget it as it leaves them
      }
      await this.#recover(session, fallen, slice);
    });
  }

  /** A message or an answer gave the client the state of a stream: its next event begins there. */
  shown(session: Session, snapshot: StreamSnapshot | undefined): void {
    if (snapshot === undefined) return;
    const { id, type } = snapshot.channel;
    const place = type === GROUP_CHANNEL ? this.#parts.groups.get(id) : PERSONAL;
    place?.backlogOf(session)?.shown(snapshot);
  }

  /** What comes is held from the start: an event that is of no stream is kept nowhere else. */
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
   * Of a group that is not resumed, the session is shown what was sent since its user became a
   * member. False: the user is not a member.
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
    await cluster.barrier(); // what was sent while its user was not a member has come
    backlog.forgetGroup(channelId); // and what is stored since is read
    const isAhead = had.seq > joinSeq;
    const headSeq = isAhead ? await this.#reads.run(() => store.headSeq(key)) : 0;
    const isLost = isAhead && had.seq > headSeq; // in a fail-over: others have or get those seqs
    if (isLost || !(isAhead || had.isResumed)) backlog.advance(key, joinSeq);
    return true;
  }

  /** Catches up with these channels of the place, and goes live. */
  async #run(backlog: Backlog, channels: readonly ChannelRef[]): Promise<void> {
    for (const channel of channels) await this.#readToEnd(backlog, channel);
    if (backlog.isOver) return;
    if (channels.length > 0) await this.#parts.cluster.barrier(); // what was read has come, and is left out
    this.#goLive(backlog);
  }

  /** Messages at once, events when the session knows where the streams are. */
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
   * Holds what comes while no more than a page is missing; else it is left to the store, however
   * long reading takes.
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
   * Pushes the next page; returns whether there is more. A page covers what expired inside it and
   * at its end.
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
    if (!(await this.#mayRead(session, channel))) return true; // read again, unless it is over
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

  /** Asked after a read: a removal before it may not have been delivered here. */
  async #mayRead(session: Session, { id, type }: ChannelRef): Promise<boolean> {
    if (type !== GROUP_CHANNEL) return true;
    const { store, cluster } = this.#parts;
    const [joinSeq] = await this.#reads.run(() => store.joinSeqs(id, [session.uid]));
    if (joinSeq !== undefined) return true;
    await cluster.barrier(); // the removal is delivered, and ends the catch-up, unless the user is back
    return false;
  }

  /** At once where nothing is pending, as in nearly every channel. */
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

  /** All but the last of many streams one by one, so that the client takes each before the next. */
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

  /** Of personal channels many may be active. */
  async #present(backlog: Backlog): Promise<void> {
    for (const name of (await this.#active(backlog)).slice(1)) {
      const snapshot = await this.#settled(name);
      if (backlog.isOver) return;
      if (snapshot?.state === "active") backlog.present(snapshot);
      await backlog.session.writable(this.#maxUnreadBytes);
    }
  }

  /** The last snapshots are read while everything is kept, so they and what is kept meet. */
  async #readLast(backlog: Backlog): Promise<void> {
    backlog.keepAll();
    const active = backlog.isJoining ? await this.#active(backlog) : [];
    const read = await Promise.all(backlog.unread.map((name) => this.#stream(name)));
    await this.#parts.cluster.barrier(); // what the snapshots hold has come, and is left out
    const found = read.filter((one) => one !== undefined);
    const streams = finish(backlog, active, found);
    if (streams > 0) this.#parts.metrics.caughtUp(streams);
  }

  /** Removals before the read are delivered: a session whose user was removed has left. */
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

  /** A session that cannot be caught up with comes back and resumes. */
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
 * Pushes what was withheld and goes live, in one turn. Returns how many streams were caught up with
 * from the store.
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
