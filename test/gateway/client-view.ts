// The pushes of one client as a careful client sees them: the seq up to which it has every message
// of each channel, and every gap or repeat.

import { type ChannelRef, PERSON_CHANNEL } from "../../src/broker/model.ts";
import type { ResumePoint } from "../../src/protocol/protocol.ts";
import type { Seen, SeenMessage } from "./recorder.ts";

export interface ClientView {
  /** Seq up to which the client has every message, by channel. */
  readonly levels: ReadonlyMap<string, number>;
  /** `clientMsgNo` of every message, pushed one by one or in pages. */
  readonly nos: readonly string[];
  /** `clientMsgNo` of each message without a seq, in order. */
  readonly unstored: readonly string[];
  /** `clientMsgNo` of each message that was received more than once. */
  readonly repeats: readonly string[];
  readonly problems: readonly string[];
}

export function nameOf({ type, id }: ChannelRef): string {
  return `${type === PERSON_CHANNEL ? "person" : "group"} ${id}`;
}

export function clientView(seen: readonly Seen[], points: readonly ResumePoint[]): ClientView {
  const levels = new Map(points.map(({ channel, lastSeq }) => [nameOf(channel), lastSeq]));
  const unstored: string[] = [];
  const problems: string[] = [];

  /**
   * Moves the client's position in a channel. A channel without a resume point starts at its first
   * message.
   */
  function advance(name: string, fromSeq: number, throughSeq: number): void {
    const level = levels.get(name) ?? fromSeq - 1;
    if (fromSeq !== level + 1) problems.push(`${name}: ${fromSeq} follows ${level}`);
    levels.set(name, throughSeq);
  }

  for (const push of seen) {
    if (push.kind === "message") {
      const { seq, no } = push.message;
      if (seq === 0) unstored.push(no);
      else advance(nameOf(push.channel), seq, seq);
    }
    if (push.kind === "messages") {
      const { afterSeq, throughSeq } = push;
      const name = nameOf(push.channel);
      advance(name, afterSeq + 1, throughSeq);
      if (!isAscendingWithin(push.messages, afterSeq, throughSeq))
        problems.push(`${name}: a push of messages out of order or outside its range`);
    }
  }
  const nos = seen.flatMap(messagesOf).map(({ no }) => no);
  const repeats = nos.filter((no, at) => nos.indexOf(no) !== at);
  return { levels, nos, unstored, repeats, problems };
}

function messagesOf(push: Seen): readonly SeenMessage[] {
  if (push.kind === "message") return [push.message];
  return push.kind === "messages" ? push.messages : [];
}

function isAscendingWithin(
  messages: readonly { readonly seq: number }[],
  afterSeq: number,
  throughSeq: number,
): boolean {
  const seqs = [afterSeq, ...messages.map(({ seq }) => seq)];
  return (
    seqs.every((seq, at) => at === 0 || seq > (seqs[at - 1] ?? 0)) &&
    (seqs.at(-1) ?? 0) <= throughSeq
  );
}
