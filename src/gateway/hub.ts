// The hub owns the sessions of this node and takes every cluster event to the ones it is for. Encodes a message once per wire format and view.
// Maps: sessions by uid, groups by channel id. It never reads the store and never waits for a receiver.

import {
  type ChannelEvent,
  GROUP_CHANNEL,
  groupTopic,
  presenceTopic,
  type StreamSnapshot,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { Cluster, ClusterEvent, UserState } from "../broker/ports.ts";
import { TimeSlice, Turns } from "../lib/time-slice.ts";
import type { CatchUps } from "./catch-ups.ts";
import { Group } from "./group.ts";
import { deliverCommand, mayLackCommands } from "./inbox.ts";
import type { Cursors, Session } from "./session.ts";
import {
  deliverConversation,
  deliverEvent,
  deliverMessage,
  pairOf,
  type SessionsOf,
} from "./user-delivery.ts";

type EventOf<K extends ClusterEvent["kind"]> = Extract<
  ClusterEvent,
  { readonly kind: K }
>;

export interface HubParts {
  readonly cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">;
  readonly publisher: Parameters<Group["deliver"]>[2];
  readonly catchUps: CatchUps;
  readonly watch: {
    heard(uid: string): void;
    leave(session: Session): void;
  };
  /** Of sessions that have joined. */
  readonly admissions: {
    /** Makes it live in one more group, with what was sent since its user became a member; not if the store says that it is none. */
    admit(session: Session, channelId: string, hub: Hub): Promise<void>;
    /** The same of a group that its user was removed from. */
    readmit(session: Session, channelId: string, hub: Hub): Promise<void>;
    /** See `ChannelStore`. */
    joinSeqs(
      channelId: string,
      uids: readonly string[],
    ): Promise<readonly (number | undefined)[]>;
  };
  readonly rereads: {
    /** Hands `resync` how the user stands; undefined: that cannot be found out. */
    missed(uid: string, resync: (state: UserState | undefined) => void): void;
    inbox(session: Session): void;
    memberships(
      session: Session,
      adopt: (groups: readonly string[]) => Promise<void>,
    ): void;
  };
  readonly metrics: {
    /** An event went out to so many sessions. */
    eventPushed(sessions: number): void;
    /** Copies of commands went out. */
    commandsPushed(copies: number): void;
    levelling(by: number): void;
  };
}

const NOBODY: readonly Session[] = [];
/** Joining and leaving of one session hold the event loop so long at a time. */
const SLICE_MS = 2;
const NO_CURSORS: Cursors = new Map();

export class Hub {
  readonly #byUid = new Map<string, readonly Session[]>();
  readonly #groups = new Map<string, Group>();
  readonly #cluster: HubParts["cluster"];
  readonly #publisher: HubParts["publisher"];
  readonly #catchUps: CatchUps;
  readonly #watch: HubParts["watch"];
  readonly #rereads: HubParts["rereads"];
  readonly #admissions: HubParts["admissions"];
  readonly #metrics: HubParts["metrics"];
  readonly #turns = new Turns();
  #fanouts = 0;
  #deliveries = 0;

  constructor(parts: HubParts) {
    this.#cluster = parts.cluster;
    this.#publisher = parts.publisher;
    this.#catchUps = parts.catchUps;
    this.#watch = parts.watch;
    this.#rereads = parts.rereads;
    this.#admissions = parts.admissions;
    this.#metrics = parts.metrics;
  }

  /** Messages taken to sessions of this node, and to how many sessions in all. */
  get stats(): { readonly fanouts: number; readonly deliveries: number } {
    return { fanouts: this.#fanouts, deliveries: this.#deliveries };
  }

  /** For work on one session that may be about thousands of channels. */
  slice(): TimeSlice {
    return new TimeSlice(SLICE_MS, this.#turns);
  }

  *sessions(): Iterable<Session> {
    for (const sessions of this.#byUid.values()) yield* sessions;
  }

  sessionsOf(uid: string): readonly Session[] {
    return this.#byUid.get(uid) ?? NOBODY;
  }

  readonly #sessionsOf: SessionsOf = (uid) => this.sessionsOf(uid);

  /**
   * Enters a session: every event for its user that reaches the node reaches it. Personal messages are held until it is released, events of personal
   * channels until `followPersonal`, commands until it has read its inbox.
   */
  enter(session: Session): void {
    this.#catchUps.enter(session);
    session.inbox = { hasMore: false, told: [] };
    const others = this.sessionsOf(session.uid);
    this.#byUid.set(session.uid, others.concat(session)); // exactly as long as needed, unlike a spread
  }

  /**
   * Once resolved, what is published for the session's user and in these groups from then on reaches the node; of the groups until `cool`: the session
   * may be about to join them. Harmless for one that is over. Throws `unavailable`.
   */
  async subscribe(
    session: Session,
    channelIds: readonly string[],
  ): Promise<void> {
    if (session.ended !== undefined) return;
    session.warm ??= [];
    const { warm } = session;
    const user = this.#cluster.subscribe(userTopic(session.uid));
    const groups = this.slice().each(channelIds, async (id) => {
      if (session.ended !== undefined) return;
      warm.push(id);
      this.#group(id).expect(session, false);
      await this.#cluster.subscribe(groupTopic(id));
    });
    await Promise.all([user, groups]);
  }

  /** Forgets a session that ended; harmless when it is not in. Its connection is closed: that its groups know it a little longer does no harm. */
  leave(session: Session): void {
    if (session.joining) this.unfollow(session, session.joining.channelId);
    void this.#leaveGroups(session);
    const left = this.sessionsOf(session.uid).filter((one) => one !== session);
    this.#watch.leave(session);
    if (left.length > 0) this.#byUid.set(session.uid, left);
    else if (this.#byUid.delete(session.uid))
      this.#cluster.unlisten(userTopic(session.uid));
  }

  /** Once resolved, what is published in the groups that the session subscribed to reaches it as it comes. Throws `unavailable`. */
  async warm(session: Session): Promise<void> {
    await this.slice().each(session.warm ?? [], async (id) => {
      const isWanted = session.ended === undefined && this.#groups.has(id); // a removal may have dropped it
      if (isWanted) await this.#cluster.listen(groupTopic(id));
    });
  }

  /** Of the groups that are warm it gets from its connack on what comes where `isLive`; undefined: its user is no member. */
  async serve(
    session: Session,
    isLive: (channelId: string) => boolean | undefined,
  ): Promise<void> {
    const slice = this.slice();
    for (const id of session.warm ?? []) {
      if (slice.isUsedUp()) await slice.rest();
      const group = this.#groups.get(id);
      const isServed = isLive(id);
      if (isServed !== undefined) group?.expect(session, isServed);
      else if (group !== undefined) {
        group.forgo(session);
        this.#dropEmpty(group);
      }
    }
  }

  /** The session follows what it is to follow; harmless when nothing was warm. */
  async cool(session: Session): Promise<void> {
    const { warm = [] } = session;
    session.warm = undefined;
    const slice = this.slice();
    for (const id of warm) {
      if (slice.isUsedUp()) await slice.rest();
      const group = this.#groups.get(id);
      group?.forgo(session);
      if (group !== undefined) this.#dropEmpty(group);
    }
  }

  async #leaveGroups(session: Session): Promise<void> {
    const slice = this.slice();
    for (const id of session.groups.keys()) {
      if (slice.isUsedUp()) await slice.rest();
      this.unfollow(session, id);
    }
    await this.cool(session);
  }

  /** Once resolved, live messages of the group are held for the session until `follow`. */
  async join(session: Session, channelId: string): Promise<void> {
    this.#group(channelId).hold(session);
    await this.#cluster.listen(groupTopic(channelId)); // also when another session's listen is still under way
  }

  /**
   * Gives the session the group's messages live, ending a `join` before it: at once those that reach the node, and once resolved all. Events
   * follow as soon as it knows where the active stream stands. `lastSeq`: of the newest message that it was given before.
   * Harmless when it follows already or its user was removed from the group. Throws `unavailable`: then it does not follow.
   */
  async follow(
    session: Session,
    channelId: string,
    lastSeq = 0,
  ): Promise<void> {
    if (session.ended !== undefined || session.follows(channelId)) return;
    const group = this.#group(channelId);
    if (session.wasRemovedFrom(channelId)) {
      group.forgo(session);
      return this.#dropEmpty(group);
    }
    const behind = group.add(session, lastSeq);
    this.#metrics.levelling(1);
    try {
      await this.#cluster.listen(groupTopic(channelId));
      this.#catchUps.join(behind);
    } catch (error) {
      const isStillIn = group.behindOf(session) === behind;
      if (isStillIn) this.#takeOut(session, group);
      throw error;
    } finally {
      this.#metrics.levelling(-1);
    }
  }

  /** Ends a `join` that failed: of the group nothing goes out, of the rest nothing is held any more. */
  withdraw(session: Session, channelId: string): void {
    if (!session.follows(channelId)) {
      this.unfollow(session, channelId);
      session.dropHeld(channelId);
    }
    session.release(NO_CURSORS);
  }

  /** Stops giving it the group's messages; harmless when it does not get them. */
  unfollow(session: Session, channelId: string): void {
    const group = this.#groups.get(channelId);
    if (group === undefined) return;
    group.remove(session);
    this.#dropEmpty(group);
  }

  /** The connection of the session lags: events wait until it has drained. */
  lagging(session: Session): void {
    if (session.ended !== undefined) return;
    const groups = this.#groupsOf(session);
    this.#catchUps.lag(session, groups, this.slice());
  }

  /** A message or an answer gave the client the state of a stream: its next event begins there. */
  shown(session: Session, snapshot: StreamSnapshot | undefined): void {
    if (snapshot === undefined) return;
    const { id, type } = snapshot.channel;
    const behind =
      type === GROUP_CHANNEL
        ? this.#groups.get(id)?.behindOf(session)
        : session.personalEvents;
    if (behind === undefined) session.opened(snapshot);
    else behind.shown(snapshot);
  }

  /** The session is level with the messages of its personal channels: events follow. */
  followPersonal(session: Session): void {
    this.#catchUps.joinPersonal(session);
  }

  /** The listener of the cluster's events. */
  readonly deliver = (event: ClusterEvent): void => {
    switch (event.kind) {
      case "message":
        this.#deliverMessage(event);
        break;
      case "event":
        this.#metrics.eventPushed(this.#deliverEvent(event.event));
        break;
      case "command":
        this.#deliverCommand(event);
        break;
      case "conversation":
        this.#deliverConversation(event);
        break;
      case "presence":
        this.#watch.heard(event.uid);
        break;
      case "end_session":
        this.#find(event.uid, event.sessionId)?.end(event.reason);
        break;
      case "credential":
        break; // the sessions of the old token that are to end are ended one by one
      case "addition":
        this.#include(event);
        break;
      case "removal":
        for (const uid of event.uids ?? [])
          this.#exclude(uid, event.channelId, false);
        break;
      case "missed":
        this.#reread(event.topic);
        break;
    }
  };

  /** See `GroupJudge`. */
  async judge(channelId: string, lastSeq: number): Promise<void> {
    const uids = new Set<string>();
    for (const { uid } of this.#groups.get(channelId)?.sessions() ?? [])
      uids.add(uid);
    if (uids.size === 0) return;
    const asked = [...uids];
    const joinSeqs = await this.#admissions.joinSeqs(channelId, asked);
    for (const [at, uid] of asked.entries()) {
      const joinSeq = joinSeqs[at];
      if (joinSeq === undefined || joinSeq > lastSeq)
        this.#exclude(uid, channelId, joinSeq !== undefined);
    }
  }

  #deliverMessage(event: EventOf<"message">): void {
    const { message } = event;
    const { channel, fromUid } = message;
    this.#fanouts += 1;
    const origin = this.#find(fromUid, event.origin);
    if (event.recipients === undefined && channel.type === GROUP_CHANNEL) {
      const group = this.#groups.get(channel.id);
      this.#deliveries += group?.deliver(message, origin, this.#publisher) ?? 0;
      return;
    }
    const uids = event.recipients ?? pairOf(message);
    const to = { uids, origin };
    this.#deliveries += deliverMessage(message, to, this.#sessionsOf);
  }

  #deliverEvent(event: ChannelEvent): number {
    if (event.channel.type !== GROUP_CHANNEL)
      return deliverEvent(event, this.#sessionsOf);
    const group = this.#groups.get(event.channel.id);
    return group?.deliverEvent(event, this.#publisher) ?? 0;
  }

  #deliverCommand(event: EventOf<"command">): void {
    const origin = this.#find(event.message.fromUid, event.origin);
    const pushed = deliverCommand(event, {
      origin,
      sessionsOf: this.#sessionsOf,
      missed: (session) => this.#rereads.inbox(session),
    });
    this.#metrics.commandsPushed(pushed);
  }

  #deliverConversation(event: EventOf<"conversation">): void {
    const { last } = event.conversation;
    deliverConversation(event, this.#sessionsOf, (session) =>
      this.shown(session, last?.stream),
    );
  }

  /** It may be heard after a later removal: the store is asked. */
  #include({ uid, channelId }: EventOf<"addition">): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      if (session.hasJoined) this.#ask(session, channelId, true); // one that is joining looks for itself
    }
  }

  /** Gives the user nothing more of the group, unless it came back: `isBack`, or as the store says. */
  #exclude(uid: string, channelId: string, isBack: boolean): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      this.#dismiss(session, channelId);
      if (session.hasJoined) this.#ask(session, channelId, isBack);
    }
  }

  #ask(session: Session, channelId: string, member: boolean): void {
    if (session.follows(channelId)) return;
    const asked = member
      ? this.#admissions.admit(session, channelId, this)
      : this.#admissions.readmit(session, channelId, this);
    asked.catch(() => this.#rereadMemberships(session));
  }

  #dismiss(session: Session, channelId: string): void {
    const group = this.#groups.get(channelId);
    session.noteRemoval(channelId);
    if (group !== undefined) this.#takeOut(session, group);
    session.dropHeld(channelId);
  }

  /** It may come back to the group, and then has what it had. */
  #takeOut(session: Session, group: Group): void {
    const { channelId, lastSeq } = group;
    if (session.follows(channelId) || group.serves(session))
      session.noteHad(channelId, lastSeq);
    group.forgo(session);
    this.unfollow(session, channelId);
  }

  /** Events of the topic may be lost: their subjects are read again. */
  #reread(topic: Topic): void {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#watch.heard(uid);
    if (topic !== userTopic(uid)) return;
    this.#rereads.missed(uid, (state) => this.#resync(uid, state));
  }

  /** The user's sessions read again what they have otherwise than the user stands; undefined: all. A removal is published on the group's topic, too. */
  #resync(uid: string, state: UserState | undefined): void {
    for (const session of this.sessionsOf(uid)) {
      if (state === undefined || mayLackCommands(session, state.inboxSeq))
        this.#rereads.inbox(session);
      if (state === undefined || !hasGroups(session, state.groups))
        this.#rereadMemberships(session);
    }
  }

  #rereadMemberships(session: Session): void {
    this.#rereads.memberships(session, (groups) =>
      this.#adopt(session, groups),
    );
  }

  /**
   * The session follows exactly these groups; once resolved they are live, and it has what was sent in them since its user joined. Stops when a
   * membership changes meanwhile: the caller reads them again.
   */
  async #adopt(session: Session, channelIds: readonly string[]): Promise<void> {
    const isOutdated = () =>
      session.membershipsStale || session.ended !== undefined;
    const wanted = new Set(channelIds);
    const slice = this.slice();
    const { joining } = session;
    if (joining && !wanted.has(joining.channelId))
      this.#dismiss(session, joining.channelId);
    for (const id of session.groups.keys()) {
      if (slice.isUsedUp()) await slice.rest();
      if (isOutdated()) return;
      if (!wanted.has(id)) this.#dismiss(session, id);
    }
    const failures: unknown[] = [];
    await slice.each(channelIds, async (id) => {
      if (isOutdated() || session.follows(id)) return;
      const admitted = this.#admissions.admit(session, id, this);
      await admitted.catch((error) => failures.push(error));
    });
    if (failures.length > 0) throw failures[0];
  }

  /** Reads the session's groups as they are at each step. */
  *#groupsOf(session: Session): Generator<Group, void> {
    for (const id of session.groups.keys()) {
      const group = this.#groups.get(id);
      if (group !== undefined) yield group;
    }
  }

  #dropEmpty(group: Group): void {
    const { channelId } = group;
    if (group.isEmpty && this.#groups.delete(channelId))
      this.#cluster.unlisten(groupTopic(channelId));
  }

  #group(channelId: string): Group {
    const found = this.#groups.get(channelId);
    if (found !== undefined) return found;
    const made = new Group(channelId);
    this.#groups.set(channelId, made);
    return made;
  }

  #find(uid: string, sessionId: string | undefined): Session | undefined {
    if (sessionId === undefined) return undefined;
    return this.sessionsOf(uid).find((one) => one.sessionId === sessionId);
  }
}

/** The session has joined, and follows exactly these groups. */
function hasGroups(session: Session, channelIds: readonly string[]): boolean {
  const isSame = session.groups.size === channelIds.length;
  return (
    session.hasJoined && isSame && channelIds.every((id) => session.follows(id))
  );
}
