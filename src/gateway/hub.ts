// The hub owns the sessions of this node and takes every cluster event to the ones it is for.
// Encodes a message once per wire format and view. Map: sessions by uid. It never reads the store
// and never waits for a receiver.

import {
  type ChannelEvent,
  GROUP_CHANNEL,
  presenceTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { Cluster, ClusterEvent } from "../broker/ports.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import type { CatchUps } from "./catch-up.ts";
import type { Group, Groups } from "./groups.ts";
import { deliverCommand } from "./inbox.ts";
import type { Resync } from "./resync.ts";
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

interface HubParts {
  readonly cluster: Pick<Cluster, "subscribe" | "unlisten">;
  readonly groups: Groups;
  readonly publisher: Parameters<Group["deliver"]>[2];
  readonly catchUps: Pick<CatchUps, "enter" | "join" | "rejoin" | "joinSeqs" | "shown">;
  readonly resync: Pick<Resync, "missed" | "inbox" | "memberships">;
  readonly watch: Pick<PresenceWatch, "heard" | "leave">;
  readonly metrics: Pick<GatewayMetrics, "eventPushed" | "commandsPushed">;
}

const NOBODY: readonly Session[] = [];

export class Hub {
  readonly #byUid = new Map<string, readonly Session[]>();
  readonly #parts: HubParts;
  #fanouts = 0;
  #deliveries = 0;

  constructor(parts: HubParts) {
    this.#parts = parts;
  }

  /** Messages taken to sessions of this node, and to how many sessions in all. */
  get stats(): { readonly fanouts: number; readonly deliveries: number } {
    return { fanouts: this.#fanouts, deliveries: this.#deliveries };
  }

  *sessions(): Iterable<Session> {
    for (const sessions of this.#byUid.values()) yield* sessions;
  }

  readonly sessionsOf: SessionsOf = (uid) => this.#byUid.get(uid) ?? NOBODY;

  /** Enters a session: what comes for its user reaches it, and is held until it has caught up. */
  enter(session: Session): void {
    this.#parts.catchUps.enter(session);
    session.inbox = { hasMore: false, unstored: [] };
    const others = this.sessionsOf(session.uid);
    this.#byUid.set(session.uid, others.concat(session)); // exactly as long as needed, unlike a spread
  }

  /**
   * Once resolved, what is published for the session's user from then on reaches the node. Throws
   * `unavailable`.
   */
  async subscribe({ ended, uid }: Session): Promise<void> {
    if (ended === undefined) await this.#parts.cluster.subscribe(userTopic(uid));
  }

  /** Forgets a session that ended; harmless when it is not in. */
  leave(session: Session): void {
    const { uid } = session;
    void this.#parts.groups.leave(session);
    const left = this.sessionsOf(uid).filter((one) => one !== session);
    this.#parts.watch.leave(session);
    if (left.length > 0) this.#byUid.set(uid, left);
    else if (this.#byUid.delete(uid)) this.#parts.cluster.unlisten(userTopic(uid));
  }

  /** The listener of the cluster's events. */
  readonly deliver = (event: ClusterEvent): void => {
    switch (event.kind) {
      case "message":
        this.#deliverMessage(event);
        break;
      case "event":
        this.#parts.metrics.eventPushed(this.#deliverEvent(event.event));
        break;
      case "command":
        this.#deliverCommand(event);
        break;
      case "conversation":
        this.#deliverConversation(event);
        break;
      case "presence":
        this.#parts.watch.heard(event.uid);
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
        for (const uid of event.uids ?? []) this.#exclude(uid, event.channelId, false);
        break;
      case "missed":
        this.#resync(event.topic);
        break;
    }
  };

  /** See `GroupJudge`. */
  async judge(channelId: string, lastSeq: number): Promise<void> {
    const uids = new Set<string>();
    for (const { uid } of this.#parts.groups.get(channelId)?.sessions() ?? []) uids.add(uid);
    if (uids.size === 0) return;
    const asked = [...uids];
    const joinSeqs = await this.#parts.catchUps.joinSeqs(channelId, asked);
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
      const group = this.#parts.groups.get(channel.id);
      this.#deliveries += group?.deliver(message, origin, this.#parts.publisher) ?? 0;
      return;
    }
    const uids = event.recipients ?? pairOf(message);
    const to = { uids, origin };
    this.#deliveries += deliverMessage(message, to, this.sessionsOf);
  }

  #deliverEvent(event: ChannelEvent): number {
    if (event.channel.type !== GROUP_CHANNEL) return deliverEvent(event, this.sessionsOf);
    const group = this.#parts.groups.get(event.channel.id);
    return group?.deliverEvent(event, this.#parts.publisher) ?? 0;
  }

  #deliverCommand(event: EventOf<"command">): void {
    const origin = this.#find(event.message.fromUid, event.origin);
    const pushed = deliverCommand(event, {
      origin,
      sessionsOf: this.sessionsOf,
      missed: (session) => this.#parts.resync.inbox(session),
    });
    this.#parts.metrics.commandsPushed(pushed);
  }

  #deliverConversation(event: EventOf<"conversation">): void {
    const { last } = event.conversation;
    deliverConversation(event, this.sessionsOf, (session) =>
      this.#parts.catchUps.shown(session, last?.stream),
    );
  }

  /** It may be heard after a later removal: the store is asked. */
  #include({ uid, channelId }: EventOf<"addition">): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      if (session.hasJoined) this.#ask(session, channelId, true); // one that is joining looks for itself
    }
  }

  /**
   * Gives the user nothing more of the group, unless it came back: `isBack`, or as the store says.
   */
  #exclude(uid: string, channelId: string, isBack: boolean): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      this.#parts.groups.takeOut(session, channelId);
      session.personal?.forgetGroup(channelId);
      if (session.hasJoined) this.#ask(session, channelId, isBack);
    }
  }

  #ask(session: Session, channelId: string, isMember: boolean): void {
    if (session.follows(channelId)) return;
    const { catchUps, resync } = this.#parts;
    const asked = isMember
      ? catchUps.join(session, channelId)
      : catchUps.rejoin(session, channelId);
    asked.catch(() => void resync.memberships(session));
  }

  /** Events of the topic may be lost: their subjects are read again. */
  #resync(topic: Topic): void {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#parts.watch.heard(uid);
    if (topic === userTopic(uid)) this.#parts.resync.missed(uid, this.sessionsOf);
  }

  #find(uid: string, sessionId: string | undefined): Session | undefined {
    if (sessionId === undefined) return undefined;
    return this.sessionsOf(uid).find((one) => one.sessionId === sessionId);
  }
}
