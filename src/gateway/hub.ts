// The hub holds all of this node's sessions (a map by uid) and delivers each cluster event to the
// sessions it concerns. A message is encoded once for all sessions that share a wire format and see
// the channel under the same id. The hub never reads messages from the store and never waits for a
// client.

import {
  type ChannelRef,
  GROUP_CHANNEL,
  presenceTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { Cluster, ClusterEvent } from "../broker/ports.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import { Backlog, PERSONAL_CHANNELS } from "./backlog.ts";
import type { CatchUps } from "./catch-up.ts";
import type { FanOutTurns } from "./fan-out-turns.ts";
import type { Group, Groups } from "./groups.ts";
import { deliverCommand } from "./inbox.ts";
import { delivering } from "./rates.ts";
import type { SessionResync } from "./resync.ts";
import type { Session } from "./session.ts";
import {
  deliverConversation,
  deliverEvent,
  deliverMessage,
  pairOf,
  type SessionsOf,
} from "./user-delivery.ts";
import type { PresenceWatch } from "./watch.ts";

type EventOf<K extends ClusterEvent["kind"]> = Extract<ClusterEvent, { readonly kind: K }>;

interface HubPorts {
  readonly cluster: Pick<Cluster, "subscribe" | "unlisten">;
  readonly groups: Groups;
  readonly publisher: Parameters<Group["deliver"]>[2];
  readonly fanOuts: FanOutTurns;
  readonly catchUps: Pick<CatchUps, "join" | "rejoin" | "joinSeqs" | "recordSnapshot">;
  readonly resync: Pick<SessionResync, "updateUser" | "updateInbox" | "updateMemberships">;
  readonly watch: Pick<PresenceWatch, "changed" | "refresh" | "leave">;
  readonly metrics: Pick<GatewayMetrics, "eventPushed" | "commandsPushed">;
}

const NOBODY: readonly Session[] = [];

export class Hub {
  readonly #byUid = new Map<string, readonly Session[]>();
  readonly #ports: HubPorts;
  #fanouts = 0;
  #deliveries = 0;

  constructor(ports: HubPorts) {
    this.#ports = ports;
  }

  /** Number of messages delivered on this node, and total number of their receivers. */
  get stats(): { readonly fanouts: number; readonly deliveries: number } {
    return { fanouts: this.#fanouts, deliveries: this.#deliveries };
  }

  *sessions(): Iterable<Session> {
    for (const sessions of this.#byUid.values()) yield* sessions;
  }

  readonly sessionsOf: SessionsOf = (uid) => this.#byUid.get(uid) ?? NOBODY;

  /** Returns the work, in frames, of delivering a user's message to the sessions on this node. */
  deliveryWork(uid: string, channel: ChannelRef, payloadBytes = 0): number {
    if (channel.type === GROUP_CHANNEL)
      return this.#ports.groups.get(channel.id)?.deliveryWork(payloadBytes) ?? 0;
    const peers = channel.id === uid ? NOBODY : this.sessionsOf(channel.id);
    return workOf(this.sessionsOf(uid), payloadBytes) + workOf(peers, payloadBytes);
  }

  /**
   * Adds a session. Its backlog holds the messages and events of personal channels until
   * `CatchUps.connect`, and its inbox holds commands until the session has caught up.
   */
  enter(session: Session): void {
    session.personal = new Backlog(session, PERSONAL_CHANNELS, "holding");
    session.inbox = { hasMore: false, unstored: [] };
    const existing = this.sessionsOf(session.uid);
    // `concat` allocates exactly the needed length, unlike a spread.
    this.#byUid.set(session.uid, existing.concat(session));
  }

  /**
   * Subscribes to the user's topic. Events may reach the hub later than the result (see
   * `Cluster.subscribe`).
   */
  subscribe({ ended, uid }: Session): MaybePromise<boolean> {
    return ended !== undefined || this.#ports.cluster.subscribe(userTopic(uid));
  }

  leave(session: Session): void {
    const { uid } = session;
    void this.#ports.groups.leave(session);
    const remaining = this.sessionsOf(uid).filter((other) => other !== session);
    this.#ports.watch.leave(session);
    if (remaining.length > 0) this.#byUid.set(uid, remaining);
    else if (this.#byUid.delete(uid)) this.#ports.cluster.unlisten(userTopic(uid));
  }

  readonly deliver = (event: ClusterEvent): void => {
    switch (event.kind) {
      case "message":
        this.#deliverMessage(event);
        break;
      case "event":
        this.#ports.metrics.eventPushed(this.#deliverEvent(event));
        break;
      case "command":
        this.#deliverCommand(event);
        break;
      case "conversation":
        this.#deliverConversation(event);
        break;
      case "presence":
        this.#ports.watch.changed(event.uid, event.cause);
        break;
      case "end_session":
        this.#findSession(event.uid, event.sessionId)?.end(event.reason);
        break;
      case "credential":
        // Nothing to do here: an `end_session` event is published for each session that must end.
        break;
      case "addition":
        this.#include(event);
        break;
      case "removal":
        for (const uid of event.uids ?? []) this.#exclude(uid, event.channelId, false);
        break;
      case "log":
        break; // sessions get the `event` of a stream instead of the change to its log
      case "missed":
        this.#resync(event.topic);
        break;
      case "head":
        this.#ports.groups.get(event.channelId)?.noteHead(event.headSeq);
        break;
    }
  };

  /**
   * Implements `GroupJudge`: stops delivering the group's messages and events to users who have
   * left the group, or who became members after `lastSeq`. The sessions of these new members then
   * join again.
   */
  async judge(channelId: string, lastSeq: number): Promise<void> {
    const uids = new Set<string>();
    for (const { uid } of this.#ports.groups.get(channelId)?.sessions() ?? []) uids.add(uid);
    if (uids.size === 0) return;
    const members = [...uids];
    const joinSeqs = await this.#ports.catchUps.joinSeqs(channelId, members);
    for (const [index, uid] of members.entries()) {
      const joinSeq = joinSeqs[index];
      if (joinSeq === undefined || joinSeq > lastSeq)
        this.#exclude(uid, channelId, joinSeq !== undefined);
    }
  }

  #deliverMessage(event: EventOf<"message">): void {
    const { message } = event;
    const { channel, fromUid } = message;
    this.#fanouts += 1;
    const origin = this.#findSession(fromUid, event.origin);
    if (event.recipients === undefined && channel.type === GROUP_CHANNEL) {
      const group = this.#ports.groups.get(channel.id);
      this.#deliveries += group?.deliver(message, origin, this.#ports.publisher) ?? 0;
      return;
    }
    const uids = event.recipients ?? pairOf(message);
    const fanOut = this.#ports.fanOuts.begin(fromUid, message.payload.length);
    const receivers = { uids, origin, fanOut };
    this.#deliveries += deliverMessage(message, receivers, this.sessionsOf);
  }

  #deliverEvent({ event, origin: sessionId }: EventOf<"event">): number {
    const origin = this.#findSession(event.fromUid, sessionId);
    if (event.channel.type !== GROUP_CHANNEL) return deliverEvent(event, origin, this.sessionsOf);
    const group = this.#ports.groups.get(event.channel.id);
    return group?.deliverEvent(event, origin, this.#ports.publisher) ?? 0;
  }

  #deliverCommand(event: EventOf<"command">): void {
    const origin = this.#findSession(event.message.fromUid, event.origin);
    const pushed = deliverCommand(event, {
      origin,
      fanOut: this.#ports.fanOuts.begin(event.message.fromUid, event.message.payload.length),
      sessionsOf: this.sessionsOf,
      onGap: (session) => this.#ports.resync.updateInbox(session),
    });
    this.#ports.metrics.commandsPushed(pushed);
  }

  #deliverConversation(event: EventOf<"conversation">): void {
    const { last } = event.conversation;
    deliverConversation(event, this.sessionsOf, (session) =>
      this.#ports.catchUps.recordSnapshot(session, last?.stream),
    );
  }

  /** Makes the user's sessions join the group. `join` checks the membership in the store. */
  #include({ uid, channelId }: EventOf<"addition">): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      // A session that is still joining reads its groups again.
      if (session.hasJoined) this.#requestJoin(session, channelId, true);
    }
  }

  /**
   * Stops delivering the group's messages and events to the user's sessions. The sessions rejoin if
   * the user is a member again. `isBack` is true if it is already known that the user is a member
   * again.
   */
  #exclude(uid: string, channelId: string, isBack: boolean): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      this.#ports.groups.removeSession(session, channelId);
      session.personal?.forgetGroup(channelId);
      if (session.hasJoined) this.#requestJoin(session, channelId, isBack);
    }
  }

  #requestJoin(session: Session, channelId: string, isMember: boolean): void {
    if (session.follows(channelId)) return;
    const { catchUps, resync } = this.#ports;
    const joining = isMember
      ? catchUps.join(session, channelId)
      : catchUps.rejoin(session, channelId);
    joining.catch(() => void resync.updateMemberships(session));
  }

  #resync(topic: Topic): void {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#ports.watch.refresh(uid);
    if (topic === userTopic(uid)) this.#ports.resync.updateUser(uid, this.sessionsOf);
  }

  #findSession(uid: string, sessionId: string | undefined): Session | undefined {
    if (sessionId === undefined) return undefined;
    return this.sessionsOf(uid).find((session) => session.sessionId === sessionId);
  }
}

function workOf(sessions: readonly Session[], payloadBytes: number): number {
  let encrypted = 0;
  for (const { codec } of sessions) if (codec.isPrivate) encrypted += 1;
  return delivering(sessions.length - encrypted, encrypted, payloadBytes);
}
