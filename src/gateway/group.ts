// One group as this node sees it: which wire formats its live members speak, one transport topic each, and who is still catching up.
// Owned by the hub; exists while the node holds a session that follows or joins the group.

import type { Message } from "../broker/model.ts";
import type { Codec, Push } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import type { Session } from "./session.ts";

interface FormatTopic {
  readonly codec: Codec;
  readonly topic: string;
  members: number;
}

export class Group {
  readonly channelId: string;
  readonly #formats = new Map<string, FormatTopic>();
  readonly #joining = new Set<Session>();

  constructor(channelId: string) {
    this.channelId = channelId;
  }

  get isEmpty(): boolean {
    return this.#formats.size === 0 && this.#joining.size === 0;
  }

  /** Live members of all formats. */
  get members(): number {
    let members = 0;
    for (const format of this.#formats.values()) members += format.members;
    return members;
  }

  /** From now on live messages are held for the session until it is `add`ed. */
  hold(session: Session): void {
    session.startHolding();
    session.joining = this;
    this.#joining.add(session);
  }

  /** Makes the session a live member. */
  add(session: Session): void {
    this.#joined(session);
    const format = this.#format(session.codec);
    format.members += 1;
    session.connection.subscribe(format.topic);
    session.groups = session.groups.concat(this);
  }

  /** Harmless when it is no member. */
  remove(session: Session): void {
    this.#joined(session);
    if (!session.groups.includes(this)) return;
    session.groups = session.groups.filter((group) => group !== this);
    const format = this.#format(session.codec);
    format.members -= 1;
    session.connection.unsubscribe(format.topic);
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
    const push: Push = { kind: "message", channel: message.channel, message };
    const isMember = origin?.groups.includes(this) ?? false;
    for (const format of this.#formats.values()) {
      const frame = format.codec.encodePush(push);
      if (isMember && origin?.codec.format === format.codec.format)
        origin.connection.publish(format.topic, frame);
      else publisher.publish(format.topic, frame);
    }
    return this.members - (isMember ? 1 : 0);
  }

  #joined(session: Session): void {
    if (this.#joining.delete(session)) session.joining = undefined;
  }

  #format(codec: Codec): FormatTopic {
    const found = this.#formats.get(codec.format);
    if (found !== undefined) return found;
    const topic = `${codec.format}:${this.channelId}`;
    const made = { codec, topic, members: 0 };
    this.#formats.set(codec.format, made);
    return made;
  }
}
