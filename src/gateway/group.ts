// One group as this node sees it: which wire formats its live members speak, two transport topics each, one for messages and one for events,
// and the backlogs of the sessions that are not live yet. Exists while the node has a session that follows the group or is about to.

import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  type Message,
} from "../broker/model.ts";
import type { Codec, Push } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import { Backlog, type Place } from "./backlog.ts";
import type { Had, Session } from "./session.ts";

interface FormatTopic {
  readonly codec: Codec;
  readonly topic: string;
  readonly eventTopic: string;
  members: number;
}

export class Group implements Place {
  readonly channelId: string;
  readonly key: ChannelKey;
  /** Of the newest message that its members were given, live or before; 0: none yet. */
  lastSeq = 0;
  readonly #formats = new Map<string, FormatTopic>();
  /** Live, of all formats. */
  readonly #live = new Set<Session>();
  /** Of sessions that are not members yet. */
  readonly #joining = new Map<Session, Backlog>();
  /** Of live members that do not get events now. */
  #behind: Map<Session, Backlog> | undefined;

  constructor(channelId: string) {
    this.channelId = channelId;
    this.key = channelKey({ id: channelId, type: GROUP_CHANNEL }, "");
  }

  get isEmpty(): boolean {
    return this.#formats.size === 0 && this.#joining.size === 0;
  }

  /** Live members of all formats. */
  get members(): number {
    return this.#live.size;
  }

  /** All that get or are about to get something of it. */
  *sessions(): Iterable<Session> {
    yield* this.#live;
    yield* this.#joining.keys();
  }

  /** The session is about to join. */
  expect(session: Session): Backlog {
    const backlog = new Backlog(session, this, "expected");
    this.#joining.set(session, backlog);
    session.joining ??= new Set();
    session.joining.add(this.channelId);
    return backlog;
  }

  /** Makes the session, which has everything before what is held, a live member; its events are withheld until it goes live with them too. */
  add(backlog: Backlog): void {
    const { session } = backlog;
    this.#joined(session);
    this.lastSeq = Math.max(this.lastSeq, backlog.seqOf(this.key));
    backlog.release();
    const format = this.#format(session.codec);
    format.members += 1;
    this.#live.add(session);
    session.connection.subscribe(format.topic);
    session.follow(this);
    this.#withhold(backlog);
  }

  /** Of the group nothing more goes to the session. Harmless when it is not in. */
  remove(session: Session): void {
    this.backlogOf(session)?.drop();
    this.#joined(session);
    if (!session.unfollow(this)) return;
    const format = this.#format(session.codec);
    format.members -= 1;
    this.#live.delete(session);
    session.connection.unsubscribe(format.topic);
    session.connection.unsubscribe(format.eventTopic);
    this.#caughtUp(session);
    if (format.members === 0) this.#formats.delete(format.codec.format);
  }

  /** What the session has of the group; undefined: that is not known. */
  hadBy(session: Session): Had | undefined {
    if (session.follows(this.channelId))
      return { seq: this.lastSeq, isResumed: false };
    const backlog = this.#joining.get(session);
    if (backlog === undefined) return undefined;
    const { status, isResumed } = backlog;
    if (status === "early" && session.isWelcome)
      return { seq: this.lastSeq, isResumed };
    return backlog.hasBegun
      ? { seq: backlog.seqOf(this.key), isResumed }
      : undefined;
  }

  /** Encodes once per format and publishes; `origin` gets nothing. Returns how many sessions it went to. */
  deliver(
    message: Message,
    origin: Session | undefined,
    publisher: TopicPublisher,
  ): number {
    let early = 0;
    for (const [session, backlog] of this.#joining)
      if (session !== origin) early += backlog.takeMessage(message);
    if (message.messageSeq > 0) this.lastSeq = message.messageSeq;
    const push: Push = { kind: "message", channel: message.channel, message };
    const isMember = origin?.follows(this.channelId) ?? false;
    for (const format of this.#formats.values()) {
      const frame = format.codec.encodePush(push);
      if (isMember && origin?.codec.format === format.codec.format)
        origin.connection.publish(format.topic, frame);
      else publisher.publish(format.topic, frame);
    }
    return this.members + early - (isMember ? 1 : 0);
  }

  /** The same for an event, which goes to everybody who is not behind. */
  deliverEvent(event: ChannelEvent, publisher: TopicPublisher): number {
    const push = { kind: "event", channel: event.channel, event } as const;
    for (const backlog of this.#joining.values()) backlog.takeEvent(event);
    for (const { codec, eventTopic } of this.#formats.values())
      publisher.publish(eventTopic, codec.encodePush(push));
    const behind = this.#behind;
    if (behind === undefined) return this.members;
    for (const one of behind.values()) one.takeEvent(event); // may end the session, which then leaves
    return this.members - behind.size;
  }

  backlogOf(session: Session): Backlog | undefined {
    return this.#joining.get(session) ?? this.#behind?.get(session);
  }

  /** Does nothing when the session does not follow the group. */
  fallBehind(backlog: Backlog): void {
    const { connection, codec } = backlog.session;
    if (!backlog.session.follows(this.channelId)) return;
    connection.unsubscribe(this.#format(codec).eventTopic);
    this.#withhold(backlog);
  }

  /** Does nothing when the session does not follow the group: events are for members only. */
  goLive({ session }: Backlog): void {
    if (!session.follows(this.channelId)) return;
    this.#caughtUp(session);
    session.connection.subscribe(this.#format(session.codec).eventTopic);
  }

  #withhold(backlog: Backlog): void {
    this.#behind ??= new Map();
    this.#behind.set(backlog.session, backlog);
  }

  #caughtUp(session: Session): void {
    this.#behind?.delete(session);
    if (this.#behind?.size === 0) this.#behind = undefined;
  }

  /** It is not about to join any more. */
  #joined(session: Session): void {
    if (!this.#joining.delete(session)) return;
    session.joining?.delete(this.channelId);
    if (session.joining?.size === 0) session.joining = undefined;
  }

  #format(codec: Codec): FormatTopic {
    const found = this.#formats.get(codec.format);
    if (found !== undefined) return found;
    const topic = `${codec.format}:${this.channelId}`;
    const eventTopic = `${codec.format}#${this.channelId}`; // no id holds a #
    const made = { codec, topic, eventTopic, members: 0 };
    this.#formats.set(codec.format, made);
    return made;
  }
}
