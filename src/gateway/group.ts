// One group as this node sees it: which wire formats its live members speak, two transport topics each, one for messages and one for events,
// and the sessions that are still catching up with either. Owned by the hub; exists while the node holds a session that follows or joins the group.

import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  type Message,
} from "../broker/model.ts";
import type { Codec, Push } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import { Behind, type EventPlace } from "./behind.ts";
import type { Session } from "./session.ts";

interface FormatTopic {
  readonly codec: Codec;
  readonly topic: string;
  readonly eventTopic: string;
  members: number;
}

export class Group implements EventPlace {
  readonly channelId: string;
  readonly key: ChannelKey;
  /** Of the newest message that its members were given, live or before; 0: none yet. */
  lastSeq = 0;
  readonly #formats = new Map<string, FormatTopic>();
  /** Live, of all formats. */
  readonly #live = new Set<Session>();
  readonly #joining = new Set<Session>();
  /** Sessions that are about to join, and whether they get what comes at once. */
  #expected: Map<Session, boolean> | undefined;
  /** Live members that do not get events now. */
  #behind: Map<Session, Behind> | undefined;

  constructor(channelId: string) {
    this.channelId = channelId;
    this.key = channelKey({ id: channelId, type: GROUP_CHANNEL }, "");
  }

  get isEmpty(): boolean {
    const isAwaited = this.#joining.size > 0 || this.#expected !== undefined;
    return this.#formats.size === 0 && !isAwaited;
  }

  /** Live members of all formats. */
  get members(): number {
    return this.#live.size;
  }

  /** All that get or are about to get something of it. */
  *sessions(): Iterable<Session> {
    yield* this.#live;
    yield* this.#joining;
    yield* this.#expected?.keys() ?? [];
  }

  /**
   * A session is about to join: the group is listened to until `forgo`. With `isLive` it is given what comes from its connack on, one frame at a
   * time: thousands of subscriptions take longer than one turn of the event loop may.
   */
  expect(session: Session, isLive: boolean): void {
    this.#expected ??= new Map();
    this.#expected.set(session, isLive);
  }

  /** Harmless when it is not expected. */
  forgo(session: Session): void {
    this.#expected?.delete(session);
    if (this.#expected?.size === 0) this.#expected = undefined;
  }

  /** It is expected and gets what comes. */
  serves(session: Session): boolean {
    const isLive = this.#expected?.get(session) ?? false;
    return (
      isLive && session.isWelcome && !session.wasRemovedFrom(this.channelId)
    );
  }

  /** From now on live messages are held for the session until it is `add`ed. */
  hold(session: Session): void {
    session.startHolding();
    session.joining = this;
    this.#joining.add(session);
    this.forgo(session);
  }

  /** Makes the session, which has everything through `lastSeq`, a live member; its events are withheld until it goes live with them too. */
  add(session: Session, lastSeq = 0): Behind {
    this.#joined(session);
    this.forgo(session);
    this.lastSeq = Math.max(this.lastSeq, lastSeq);
    const format = this.#format(session.codec);
    format.members += 1;
    this.#live.add(session);
    session.connection.subscribe(format.topic);
    session.follow(this);
    const behind = new Behind(session, this, true);
    this.#withhold(behind);
    return behind;
  }

  /** Harmless when it is no member. */
  remove(session: Session): void {
    this.#joined(session);
    if (!session.unfollow(this)) return;
    const format = this.#format(session.codec);
    format.members -= 1;
    this.#live.delete(session);
    session.connection.unsubscribe(format.topic);
    session.connection.unsubscribe(format.eventTopic);
    this.#behind?.get(session)?.drop();
    this.#caughtUp(session);
    if (format.members === 0) this.#formats.delete(format.codec.format);
  }

  /** Encodes once per format and publishes; `origin` gets nothing. Returns how many sessions it went to. */
  deliver(
    message: Message,
    origin: Session | undefined,
    publisher: TopicPublisher,
  ): number {
    for (const session of this.#joining)
      if (session !== origin) session.hold(message);
    const early = this.#deliverEarly(message, origin);
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

  /** Returns how many of the expected sessions it went to. */
  #deliverEarly(message: Message, origin: Session | undefined): number {
    if (this.#expected === undefined) return 0;
    let count = 0;
    for (const session of this.#expected.keys())
      if (session !== origin && this.serves(session)) {
        session.pushMessage(message);
        if (message.stream !== undefined) session.opened(message.stream);
        count += 1;
      }
    return count;
  }

  /** The same for an event, which goes to everybody who is not behind. */
  deliverEvent(event: ChannelEvent, publisher: TopicPublisher): number {
    const push = { kind: "event", channel: event.channel, event } as const;
    if (event.stream === undefined) {
      for (const session of this.#joining) session.pushInTurn(push); // kept nowhere else
      for (const session of this.#expected?.keys() ?? [])
        if (this.serves(session)) session.push(push);
    }
    for (const { codec, eventTopic } of this.#formats.values())
      publisher.publish(eventTopic, codec.encodePush(push));
    const behind = this.#behind;
    if (behind === undefined) return this.members;
    for (const one of behind.values()) one.withhold(event); // may end the session, which then leaves
    return this.members - behind.size;
  }

  behindOf(session: Session): Behind | undefined {
    return this.#behind?.get(session);
  }

  /** Does nothing when the session does not follow the group. */
  fallBehind(behind: Behind): void {
    const { connection, codec } = behind.session;
    if (!behind.session.follows(this.channelId)) return;
    connection.unsubscribe(this.#format(codec).eventTopic);
    this.#withhold(behind);
  }

  /** Does nothing when the session does not follow the group: events are for members only. */
  goLive({ session }: Behind): void {
    if (!session.follows(this.channelId)) return;
    this.#caughtUp(session);
    session.connection.subscribe(this.#format(session.codec).eventTopic);
  }

  #withhold(behind: Behind): void {
    this.#behind ??= new Map();
    this.#behind.set(behind.session, behind);
  }

  #caughtUp(session: Session): void {
    this.#behind?.delete(session);
    if (this.#behind?.size === 0) this.#behind = undefined;
  }

  #joined(session: Session): void {
    if (this.#joining.delete(session)) session.joining = undefined;
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
