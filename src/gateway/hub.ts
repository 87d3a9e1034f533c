// The hub owns the sessions of this node and takes every cluster event to the ones it is for. Encodes a message once per wire format and view.
// Maps: sessions by uid, groups by channel id. It never reads the store and never waits for a receiver.

import {
  channelSeenBy,
  GROUP_CHANNEL,
  groupTopic,
  type Message,
  userTopic,
} from "../broker/model.ts";
import type { Cluster, ClusterEvent } from "../broker/ports.ts";
import type { Frame } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import { Group } from "./group.ts";
import type { Session } from "./session.ts";

type MessageEvent = Extract<ClusterEvent, { readonly kind: "message" }>;
type MembershipEvent = Extract<ClusterEvent, { readonly kind: "membership" }>;

const NOBODY: readonly Session[] = [];

export class Hub {
  readonly #byUid = new Map<string, readonly Session[]>();
  readonly #groups = new Map<string, Group>();
  readonly #cluster: Pick<Cluster, "listen" | "unlisten">;
  readonly #publisher: TopicPublisher;
  #fanouts = 0;
  #deliveries = 0;

  constructor(parts: {
    readonly cluster: Pick<Cluster, "listen" | "unlisten">;
    readonly publisher: TopicPublisher;
  }) {
    this.#cluster = parts.cluster;
    this.#publisher = parts.publisher;
  }

  /** Messages taken to sessions of this node, and to how many sessions in all. */
  get stats(): { readonly fanouts: number; readonly deliveries: number } {
    return { fanouts: this.#fanouts, deliveries: this.#deliveries };
  }

  *sessions(): Iterable<Session> {
    for (const sessions of this.#byUid.values()) yield* sessions;
  }

  sessionsOf(uid: string): readonly Session[] {
    return this.#byUid.get(uid) ?? NOBODY;
  }

  /** Enters a session: once resolved, every event for its user reaches it; personal messages are held until it is released. */
  async enter(session: Session): Promise<void> {
    const others = this.sessionsOf(session.uid);
    this.#byUid.set(session.uid, others.concat(session)); // exactly as long as needed, unlike a spread
    await this.#cluster.listen(userTopic(session.uid));
  }

  /** Forgets a session; harmless when it is not in. */
  leave(session: Session): void {
    for (const { channelId } of [...session.groups])
      this.unfollow(session, channelId);
    if (session.joining) this.unfollow(session, session.joining.channelId);
    const left = this.sessionsOf(session.uid).filter((one) => one !== session);
    if (left.length > 0) this.#byUid.set(session.uid, left);
    else if (this.#byUid.delete(session.uid))
      this.#cluster.unlisten(userTopic(session.uid));
  }

  /** Once resolved, live messages of the group are held for the session until `follow`. */
  async join(session: Session, channelId: string): Promise<void> {
    this.#group(channelId).hold(session);
    await this.#cluster.listen(groupTopic(channelId)); // also when another session's listen is still under way
  }

  /**
   * Gives the session the group's messages live, ending a `join` before it: at once those that reach the node, and once resolved all.
   * Harmless when it follows already or was told out of the group.
   */
  async follow(session: Session, channelId: string): Promise<void> {
    if (session.ended !== undefined || session.follows(channelId)) return;
    if (session.wasRemovedFrom(channelId)) return;
    this.#group(channelId).add(session);
    await this.#cluster.listen(groupTopic(channelId));
  }

  /** Stops giving it the group's messages; harmless when it does not get them. */
  unfollow(session: Session, channelId: string): void {
    const group = this.#groups.get(channelId);
    if (group === undefined) return;
    group.remove(session);
    if (group.isEmpty && this.#groups.delete(channelId))
      this.#cluster.unlisten(groupTopic(channelId));
  }

  /** The listener of the cluster's events. */
  readonly deliver = (event: ClusterEvent): void => {
    switch (event.kind) {
      case "message":
        this.#deliverMessage(event);
        break;
      case "end_session":
        this.#find(event.uid, event.sessionId)?.end(event.reason);
        break;
      case "membership":
        this.#changeMembership(event);
        break;
    }
  };

  #deliverMessage(event: MessageEvent): void {
    const { message } = event;
    this.#fanouts += 1;
    const origin = this.#find(message.fromUid, event.origin);
    if (event.recipients !== undefined)
      this.#deliverToUsers(event.recipients, message, origin);
    else if (message.channel.type === GROUP_CHANNEL) {
      const group = this.#groups.get(message.channel.id);
      this.#deliveries += group?.deliver(message, origin, this.#publisher) ?? 0;
    } else this.#deliverToUsers(pairOf(message), message, origin);
  }

  #deliverToUsers(
    uids: readonly string[],
    message: Message,
    origin: Session | undefined,
  ): void {
    const isGroup = message.channel.type === GROUP_CHANNEL;
    let frames = new Map<string, Frame>();
    for (const uid of uids) {
      if (!isGroup) frames = new Map(); // each calls a conversation by the other's name
      for (const session of this.sessionsOf(uid)) {
        if (session === origin) continue;
        this.#deliveries += 1;
        if (session.isHolding) session.hold(message);
        else session.pushFrame(frameFor(session, message, frames));
      }
    }
  }

  #changeMembership({ uid, channelId, member }: MembershipEvent): void {
    for (const session of this.sessionsOf(uid)) {
      session.membershipsStale = true;
      if (member) this.#admit(session, channelId);
      else this.#dismiss(session, channelId);
    }
  }

  /** A session that is joining looks for itself what it is a member of by now. */
  #admit(session: Session, channelId: string): void {
    session.noteMembership(channelId, true);
    if (!session.hasJoined) return;
    this.follow(session, channelId).catch(() => session.end("unavailable")); // it comes back and resumes
  }

  #dismiss(session: Session, channelId: string): void {
    session.noteMembership(channelId, false);
    this.unfollow(session, channelId);
    session.dropHeld(channelId);
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

/** Both users of a personal channel, once each. */
function pairOf(message: Message): readonly string[] {
  const { fromUid, channel } = message;
  return channel.id === fromUid ? [fromUid] : [fromUid, channel.id];
}

/** The message as the sessions of one view and format get it; encoded on first use. */
function frameFor(
  session: Session,
  message: Message,
  frames: Map<string, Frame>,
): Frame {
  const { codec, uid } = session;
  const found = frames.get(codec.format);
  if (found !== undefined) return found;
  const channel = channelSeenBy(uid, message);
  const frame = codec.encodePush({ kind: "message", channel, message });
  frames.set(codec.format, frame);
  return frame;
}
