// What a viewer holds of streams, by the rules of docs/protocol/native.md, for tests. State: one
// view per stream. It is stricter than a client has to be: whatever breaks the server's promise (a
// gap, a wrong place, a text that changes) is kept as a problem, none is repaired.

import {
  type ChannelEvent,
  type ChannelRef,
  type Conversation,
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamPlace,
  type StreamSnapshot,
  type StreamState,
} from "../../src/broker/model.ts";
import type { Push, Reply } from "../../src/protocol/protocol.ts";

/** One stream as a viewer sees it. */
export class StreamView {
  text = "";
  /** Index of the event to come. */
  nextIndex = 0;
  state: StreamState = "active";
  startData = "";
  /** Undefined while active. */
  endData: string | undefined;
  notes: readonly StreamNote[] = [];
  /** How many events were applied that stood for several. */
  merged = 0;
  /** How many events came that were there already. */
  repeated = 0;
  /** How many snapshots were taken. */
  snapshots = 0;
  /** What the server should not have sent. */
  readonly problems: string[] = [];

  get ended(): boolean {
    return this.state !== "active";
  }

  /** `mayBeOld`: it did not come in turn with the events, so it may know less than they did. */
  applySnapshot(snapshot: StreamSnapshot, mayBeOld: boolean): void {
    const isBehind = snapshot.nextIndex < this.nextIndex;
    if (isBehind && mayBeOld) return;
    const [less, more] = isBehind ? [snapshot, this] : [this, snapshot];
    if (!more.text.startsWith(less.text)) this.#problem("another text");
    const { text, nextIndex, state, startData, endData, notes } = snapshot;
    Object.assign(this, { text, nextIndex, state, startData, endData, notes });
    this.snapshots += 1;
  }

  applyEvent(event: ChannelEvent, place: StreamPlace): void {
    if (place.nextIndex <= this.nextIndex) {
      this.repeated += 1;
      return;
    }
    if (place.index > this.nextIndex) this.#problem(`a gap to ${place.index}`);
    if (this.ended) this.#problem(`${place.index} after the end`);
    const known = this.text.length - place.textOffset;
    if (place.index < this.nextIndex ? known < 0 : known !== 0)
      this.#problem(`${place.index} at ${place.textOffset}`);
    if (place.nextIndex > place.index + 1) this.merged += 1;
    this.nextIndex = place.nextIndex;
    this.state = place.state;
    this.#applyData(event, place);
  }

  #applyData(event: ChannelEvent, place: StreamPlace): void {
    const { type, data, eventId, timestampMs } = event;
    if (type === STREAM_START) this.startData = data;
    else if (type === STREAM_CONTENT) this.text += data.slice(this.text.length - place.textOffset);
    else if (type === STREAM_END) this.endData = data;
    else {
      const { index, textOffset } = place;
      const note = { index, textOffset, eventId, type, data, timestampMs };
      this.notes = [...this.notes, note];
    }
    if ((type === STREAM_END) !== this.ended) this.#problem(`${type} leaves it ${this.state}`);
  }

  #problem(what: string): void {
    this.problems.push(`${what}, when ${this.nextIndex} was to come`);
  }
}

/** The streams of one user's client; may outlive its connections. */
export class StreamViews {
  readonly #views = new Map<string, StreamView>();

  /** Undefined: nothing was heard of it. */
  of(channel: ChannelRef, clientMsgNo: string): StreamView | undefined {
    return this.#views.get(nameOf(channel, clientMsgNo));
  }

  all(): readonly StreamView[] {
    return [...this.#views.values()];
  }

  /** Any frame, as it comes. */
  applyFrame(frame: Push | Reply): void {
    switch (frame.kind) {
      case "message":
        return this.#message(frame.channel, frame.message);
      case "messages":
        for (const message of frame.messages) this.#message(frame.channel, message);
        return;
      case "stream": {
        const { channel, snapshot } = frame;
        const view = this.#viewOf(channel, snapshot.clientMsgNo);
        return view.applySnapshot(snapshot, "ref" in frame);
      }
      case "conversation":
        return this.#conversation(frame.conversation);
      case "conversations":
        for (const one of frame.conversations) this.#conversation(one);
        return;
      case "event": {
        const { channel, event } = frame;
        if (event.stream === undefined) return;
        const view = this.#viewOf(channel, event.clientMsgNo);
        return view.applyEvent(event, event.stream);
      }
    }
  }

  #conversation({ channel, last }: Conversation): void {
    if (last !== undefined) this.#message(channel, last);
  }

  #message(channel: ChannelRef, { stream, clientMsgNo }: Message): void {
    if (stream !== undefined) this.#viewOf(channel, clientMsgNo).applySnapshot(stream, true);
  }

  #viewOf(channel: ChannelRef, clientMsgNo: string): StreamView {
    const name = nameOf(channel, clientMsgNo);
    const view = this.#views.get(name) ?? new StreamView();
    this.#views.set(name, view);
    return view;
  }
}

function nameOf({ type, id }: ChannelRef, clientMsgNo: string): string {
  return JSON.stringify([type, id, clientMsgNo]);
}
