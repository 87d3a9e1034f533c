// The groups on this node. A group exists, and its cluster topic stays subscribed, while at least
// one session follows the group or is about to join it. For each wire format of its members, a
// group has two transport topics, one for messages and one for events. Members subscribe to the
// topic for events only when the first event arrives, because most groups have no events.

import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  type Message,
} from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";
import { piecesOf } from "../lib/pieces.ts";
import { TimeSlice, Turns } from "../lib/time-slice.ts";
import type { Codec } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import { Backlog, type Scope } from "./backlog.ts";
import type { FanOutTurns } from "./fan-out-turns.ts";
import { delivering } from "./rates.ts";
import { type DeferredPush, type GroupPosition, publishFrames, type Session } from "./session.ts";
import { SharedFrames } from "./shared-frames.ts";
import { messagePush } from "./user-delivery.ts";

/**
 * Length of the first time slice of work on one session's groups. Later slices may be longer if the
 * event loop is busy (see `TimeSlice`).
 */
const SLICE_MS = 0.5;
const TOPICS_PER_CALL = 20;

export class Groups {
  readonly #byId = new Map<string, Group>();
  readonly #cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">;
  readonly #turns = new Turns();
  readonly #fanOuts: FanOutTurns;

  constructor(cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">, fanOuts: FanOutTurns) {
    this.#cluster = cluster;
    this.#fanOuts = fanOuts;
  }

  slice(): TimeSlice {
    return new TimeSlice(SLICE_MS, this.#turns);
  }

  get(channelId: string): Group | undefined {
    return this.#byId.get(channelId);
  }

  /**
   * Yields the groups that the session follows. The session's groups may change during the
   * iteration.
   */
  *followedBy(session: Session): Generator<Group, void> {
    for (const id of session.groups.keys()) {
      const group = this.#byId.get(id);
      if (group !== undefined) yield group;
    }
  }

  /** Registers a session that is about to join. The caller must subscribe to the group's topic. */
  addJoining(session: Session, channelId: string): Backlog {
    const group = this.#byId.get(channelId) ?? new Group(channelId, this.#fanOuts);
    this.#byId.set(channelId, group);
    return group.addJoining(session);
  }

  listen(channelId: string): Promise<void> {
    return this.#cluster.listen(groupTopic(channelId));
  }

  /**
   * Registers a session that is about to join these groups, and subscribes to their topics. If the
   * result is or resolves to false, the caller must call `listenAll`.
   */
  subscribe(session: Session, channelIds: readonly string[]): MaybePromise<boolean> {
    return channelIds.length > TOPICS_PER_CALL
      ? this.#subscribeMany(session, channelIds)
      : this.#subscribeFew(session, channelIds);
  }

  #subscribeFew(session: Session, channelIds: readonly string[]): MaybePromise<boolean> {
    if (session.ended !== undefined || channelIds.length === 0) return true;
    for (const id of channelIds) this.addJoining(session, id);
    return this.#cluster.subscribe(...channelIds.map(groupTopic));
  }

  async #subscribeMany(session: Session, channelIds: readonly string[]): Promise<boolean> {
    const pieces = piecesOf(channelIds, TOPICS_PER_CALL);
    const areListening = await this.slice().each(pieces, async (ids) =>
      this.#subscribeFew(session, ids),
    );
    return areListening.every((isListening) => isListening);
  }

  async listenAll(session: Session): Promise<void> {
    await this.slice().each(piecesOf(session.joining ?? [], TOPICS_PER_CALL), async (ids) => {
      if (session.ended === undefined) await this.#cluster.listen(...ids.map(groupTopic));
    });
  }

  /** Removes a session from a group. The session remembers its position for a rejoin. */
  removeSession(session: Session, channelId: string): void {
    const position = this.#byId.get(channelId)?.positionOf(session);
    if (position !== undefined) session.rememberSeq(channelId, position);
    this.#remove(session, channelId);
  }

  /**
   * Removes an ended session from its groups, in several slices of time. Deliveries to an ended
   * session have no effect, even before the removal.
   */
  async leave(session: Session): Promise<void> {
    const slice = this.slice();
    for (const ids of [session.joining ?? [], session.groups.keys()])
      for (const id of ids) {
        if (slice.shouldYield()) await slice.yield();
        this.#remove(session, id);
      }
  }

  #remove(session: Session, channelId: string): void {
    const group = this.#byId.get(channelId);
    group?.remove(session);
    if (group?.isEmpty && this.#byId.delete(channelId))
      this.#cluster.unlisten(groupTopic(channelId));
  }
}

interface FormatMembers {
  readonly codec: Codec;
  readonly topic: string;
  readonly eventTopic: string;
  members: number;
  /**
   * Members whose clients acknowledge messages. `undefined` if the clients of this format do not
   * acknowledge messages.
   */
  readonly acknowledging: Set<Session> | undefined;
  /** True if a message was sent to the members one by one and may still be queued. */
  isQueued: boolean;
}

export class Group implements Scope {
  readonly channelId: string;
  readonly key: ChannelKey;
  /**
   * Newest seq that the members have received or must read from the store. 0 if no message is
   * known.
   */
  lastSeq = 0;
  readonly #formats = new Map<string, FormatMembers>();
  readonly #live = new Set<Session>();
  /**
   * Live members whose frames are encrypted individually. A transport topic would save no work for
   * these members.
   */
  #private: Set<Session> | undefined;
  readonly #joining = new Map<Session, Backlog>();
  /** Backlogs of the live members whose events are withheld for now. */
  #streamBacklogs: Map<Session, Backlog> | undefined;
  #hasEvents = false;
  readonly #fanOuts: FanOutTurns;
  /** Number of deferred deliveries. If it is not 0, nothing is published to the topics. */
  #deferred = 0;

  constructor(channelId: string, fanOuts: FanOutTurns) {
    this.channelId = channelId;
    this.#fanOuts = fanOuts;
    this.key = channelKey({ id: channelId, type: GROUP_CHANNEL }, "");
  }

  get isEmpty(): boolean {
    return this.#live.size === 0 && this.#joining.size === 0;
  }

  get members(): number {
    return this.#live.size;
  }

  /** Returns the work, in frames, of delivering a message to all sessions. */
  deliveryWork(payloadBytes: number): number {
    const encrypted = this.#private?.size ?? 0;
    const shared = this.#live.size + this.#joining.size - encrypted;
    return delivering(shared, encrypted, payloadBytes);
  }

  *sessions(): Iterable<Session> {
    yield* this.#live;
    yield* this.#joining.keys();
  }

  noteHead(headSeq: number): void {
    this.lastSeq = headSeq;
  }

  addJoining(session: Session): Backlog {
    const backlog = new Backlog(session, this, "expected");
    this.#joining.set(session, backlog);
    session.joining ??= new Set();
    session.joining.add(this.channelId);
    return backlog;
  }

  /**
   * Makes a session live for messages. The session must already have received all messages that are
   * older than the held messages.
   */
  add(backlog: Backlog): void {
    const { session } = backlog;
    this.#endJoining(session);
    this.lastSeq = Math.max(this.lastSeq, backlog.seqOf(this.key));
    backlog.release();
    this.#live.add(session);
    if (session.codec.isPrivate) {
      this.#private ??= new Set();
      this.#private.add(session);
    } else {
      const format = this.#format(session.codec);
      format.members += 1;
      format.acknowledging?.add(session);
      session.connection.subscribe(format.topic);
    }
    session.follow(this);
    this.#withhold(backlog);
  }

  remove(session: Session): void {
    session.pushDeferred(); // these frames were delivered before the removal
    this.backlogOf(session)?.drop();
    this.#endJoining(session);
    if (!session.unfollow(this)) return;
    this.#live.delete(session);
    this.#endWithholding(session);
    if (session.codec.isPrivate) {
      this.#private?.delete(session);
      return;
    }
    const format = this.#format(session.codec);
    format.members -= 1;
    format.acknowledging?.delete(session);
    session.connection.unsubscribe(format.topic);
    if (this.#hasEvents) session.connection.unsubscribe(format.eventTopic);
    if (format.members === 0) this.#formats.delete(format.codec.format);
  }

  positionOf(session: Session): GroupPosition | undefined {
    if (session.follows(this.channelId)) return { seq: this.lastSeq, isResumed: false };
    const backlog = this.#joining.get(session);
    if (backlog === undefined) return undefined;
    const { status, isResumed } = backlog;
    if (status === "early" && session.hasConnack) return { seq: this.lastSeq, isResumed };
    return backlog.hasBegun ? { seq: backlog.seqOf(this.key), isResumed } : undefined;
  }

  deliver(message: Message, origin: Session | undefined, publisher: TopicPublisher): number {
    let pushedEarly = 0;
    for (const [session, backlog] of this.#joining)
      if (session !== origin) pushedEarly += backlog.receiveMessage(message);
    if (message.messageSeq > 0) this.lastSeq = message.messageSeq;
    const isMember = origin?.follows(this.channelId) ?? false;
    const { length } = message.payload;
    const isOther = (member: Session) => member !== origin;
    if (this.#takesTurns(length)) this.#sendInTurns(length, isOther, messagePush(message));
    else this.#publish(message, isMember ? origin : undefined, publisher);
    this.#sendPrivate(length, isOther, (member) => member.pushMessage(message));
    return this.members + pushedEarly - (isMember ? 1 : 0);
  }

  #publish(message: Message, sender: Session | undefined, publisher: TopicPublisher): void {
    const { channel } = message;
    const push = { kind: "message", channel, message } as const;
    for (const format of this.#formats.values()) {
      const isSenderFormat = sender?.codec.format === format.codec.format;
      const source = isSenderFormat ? sender.connection : publisher;
      const frames = format.codec.encodePush(push);
      const { acknowledging } = format;
      if (acknowledging === undefined) publishFrames(source, format.topic, frames);
      else if (!hasOtherDevice(acknowledging, message.fromUid, sender)) {
        flushQueues(format);
        publishFrames(source, format.topic, frames);
        for (const member of acknowledging) if (member !== sender) member.expectAck(push);
      } else {
        format.isQueued = true;
        for (const member of acknowledging)
          if (member.uid === message.fromUid) {
            if (member !== sender) member.pushMessage(message);
          } else {
            member.pushFrames(frames);
            member.expectAck(push);
          }
      }
    }
  }

  /**
   * Returns true if the delivery must be split. Also true while another delivery is deferred, so
   * that each member receives its frames in order.
   */
  #takesTurns(bytes: number): boolean {
    if (this.#deferred > 0) return true;
    return !this.#fanOuts.takePublish(this.#live.size - (this.#private?.size ?? 0), bytes);
  }

  /**
   * Sends a push to the live members whose frames are not encrypted individually, in several turns
   * if necessary.
   */
  #sendInTurns(bytes: number, isReceiver: (member: Session) => boolean, push: DeferredPush): void {
    const fanOut = this.#fanOuts.begin(this.key, bytes);
    for (const member of this.#live)
      if (!member.codec.isPrivate && isReceiver(member)) fanOut.send(member, push);
    this.#deferred += 1;
    fanOut.end(() => {
      this.#deferred -= 1;
    });
  }

  #sendPrivate(bytes: number, isReceiver: (member: Session) => boolean, push: DeferredPush): void {
    if (this.#private === undefined) return;
    const fanOut = this.#fanOuts.begin(this.key, bytes);
    for (const member of this.#private) if (isReceiver(member)) fanOut.send(member, push);
    fanOut.end();
  }

  /** Pushes an event to the members except `origin`. Returns the number of receivers. */
  deliverEvent(
    event: ChannelEvent,
    origin: Session | undefined,
    publisher: TopicPublisher,
  ): number {
    const push = { kind: "event", channel: event.channel, event } as const;
    const isMember = origin?.follows(this.channelId) ?? false;
    if (!this.#hasEvents) this.#subscribeToEvents();
    for (const [session, backlog] of this.#joining)
      if (session !== origin) backlog.receiveEvent(event);
    const backlogs = this.#streamBacklogs;
    const { length } = event.data;
    const isLive = (member: Session) => member !== origin && !backlogs?.has(member);
    if (this.#takesTurns(length)) {
      const frames = new SharedFrames();
      this.#sendInTurns(length, isLive, (member) => member.pushShared(push, frames));
    } else
      for (const format of this.#formats.values()) {
        const { codec, eventTopic } = format;
        flushQueues(format);
        const isOriginFormat = isMember && origin?.codec.format === codec.format;
        const source = isOriginFormat ? origin.connection : publisher;
        publishFrames(source, eventTopic, codec.encodePush(push));
      }
    this.#sendPrivate(length, isLive, (member) => member.push(push));
    const isOriginLive = origin !== undefined && isMember && !backlogs?.has(origin);
    // `receiveEvent` may end sessions, which then leave the group. The members are therefore
    // counted last.
    if (backlogs !== undefined)
      for (const [session, backlog] of backlogs)
        if (session !== origin) backlog.receiveEvent(event);
    return this.members - (backlogs?.size ?? 0) - (isOriginLive ? 1 : 0);
  }

  backlogOf(session: Session): Backlog | undefined {
    return this.#joining.get(session) ?? this.#streamBacklogs?.get(session);
  }

  withholdEvents(backlog: Backlog): void {
    const { connection, codec } = backlog.session;
    if (!backlog.session.follows(this.channelId)) return;
    if (this.#hasEvents && !codec.isPrivate) connection.unsubscribe(this.#format(codec).eventTopic);
    this.#withhold(backlog);
  }

  /** Makes the session live for events, if it follows the group. */
  goLive({ session }: Backlog): void {
    if (!session.follows(this.channelId)) return;
    this.#endWithholding(session);
    if (this.#hasEvents && !session.codec.isPrivate)
      session.connection.subscribe(this.#format(session.codec).eventTopic);
  }

  #subscribeToEvents(): void {
    this.#hasEvents = true;
    for (const session of this.#live)
      if (!this.#streamBacklogs?.has(session) && !session.codec.isPrivate)
        session.connection.subscribe(this.#format(session.codec).eventTopic);
  }

  #withhold(backlog: Backlog): void {
    this.#streamBacklogs ??= new Map();
    this.#streamBacklogs.set(backlog.session, backlog);
  }

  #endWithholding(session: Session): void {
    this.#streamBacklogs?.delete(session);
    if (this.#streamBacklogs?.size === 0) this.#streamBacklogs = undefined;
  }

  #endJoining(session: Session): void {
    if (!this.#joining.delete(session)) return;
    session.joining?.delete(this.channelId);
    if (session.joining?.size === 0) session.joining = undefined;
  }

  #format(codec: Codec): FormatMembers {
    const existing = this.#formats.get(codec.format);
    if (existing !== undefined) return existing;
    const topic = `${codec.format}:${this.channelId}`;
    const eventTopic = `${codec.format}#${this.channelId}`; // no channel id contains a #
    const acknowledging = codec.acknowledges ? new Set<Session>() : undefined;
    const created = { codec, topic, eventTopic, members: 0, acknowledging, isQueued: false };
    this.#formats.set(codec.format, created);
    return created;
  }
}

/**
 * Flushes the members' queues, so that a message that was sent to the members one by one arrives
 * before the next publication.
 */
function flushQueues(format: FormatMembers): void {
  if (!format.isQueued) return;
  format.isQueued = false;
  for (const { connection } of format.acknowledging ?? []) connection.flush();
}

/** Returns true if `members` contains one of the sender's sessions other than `origin`. */
function hasOtherDevice(
  members: ReadonlySet<Session>,
  fromUid: string,
  origin: Session | undefined,
): boolean {
  for (const member of members) if (member.uid === fromUid && member !== origin) return true;
  return false;
}
