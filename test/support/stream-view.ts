// Builds the state of streams from received frames by the rules of docs/protocol/native.md, for
// tests. Owns one view per stream. It is stricter than a client needs to be: a gap, a wrong
// position or a changed text is recorded as a problem and never repaired.

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

/** State of one stream as a viewer has received it. */
export class StreamView {
  text = "";
  /** Index of the next event. */
  nextIndex = 0;
  state: StreamState = "active";
  startData = "";
  /** Data of the End event, `undefined` while the stream is active. */
  endData: string | undefined;
  notes: readonly StreamNote[] = [];
  /** Number of applied events into which the server had merged several events. */
  merged = 0;
  /** Number of events that were ignored because they had been received before. */
  repeated = 0;
  /** Number of applied snapshots. */
  snapshots = 0;
  /** Descriptions of frames that the server must not send. */
  readonly problems: string[] = [];

  get ended(): boolean {
    return this.state !== "active";
  }

  /**
   * Applies a snapshot. If `mayBeOld` is true, the snapshot was not pushed in order with the
   * events, and is ignored if it is older than the present state.
   */
  applySnapshot(snapshot: StreamSnapshot, mayBeOld: boolean): void {
    const isOlder = snapshot.nextIndex < this.nextIndex;
    if (isOlder && mayBeOld) return;
    const [shorter, longer] = isOlder ? [snapshot, this] : [this, snapshot];
    if (!longer.text.startsWith(shorter.text)) this.#problem("a snapshot with a different text");
    const { text, nextIndex, state, startData, endData, notes } = snapshot;
    Object.assign(this, { text, nextIndex, state, startData, endData, notes });
    this.snapshots += 1;
  }

  applyEvent(event: ChannelEvent, place: StreamPlace): void {
    if (place.nextIndex <= this.nextIndex) {
      this.repeated += 1;
      return;
    }
    if (place.index > this.nextIndex) this.#problem(`a gap before index ${place.index}`);
    if (this.ended) this.#problem(`index ${place.index} after the end`);
    const knownLength = this.text.length - place.textOffset;
    if (place.index < this.nextIndex ? knownLength < 0 : knownLength !== 0)
      this.#problem(`index ${place.index} at the wrong text offset ${place.textOffset}`);
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
    if ((type === STREAM_END) !== this.ended)
      this.#problem(`the state ${this.state} after ${type}`);
  }

  #problem(description: string): void {
    this.problems.push(`${description}; the next index is ${this.nextIndex}`);
  }
}

/** Streams that one user has received, possibly on several connections. */
export class StreamViews {
  readonly #views = new Map<string, StreamView>();

  /** Returns the view of a stream, or `undefined` if no frame of the stream has been received. */
  of(channel: ChannelRef, clientMsgNo: string): StreamView | undefined {
    return this.#views.get(nameOf(channel, clientMsgNo));
  }

  all(): readonly StreamView[] {
    return [...this.#views.values()];
  }

  /** Applies a received frame. Frames that have nothing to do with streams are ignored. */
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
        for (const conversation of frame.conversations) this.#conversation(conversation);
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
