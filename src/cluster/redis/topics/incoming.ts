// Takes each frame that came to where it belongs: the group's line, the personal channels' lines, or, out of turn, straight to the listener, once.
// What cannot be read, or does not belong where it came, is counted, reported and left out. State: ids of what was delivered lately, the last frame of a
// personal channel, changes of conversations that wait until their user is judged.

import type { ClusterEvent } from "../../../broker/ports.ts";
import {
  BATCH_FRAME,
  decodeFrame,
  framesOf,
  kindOf,
} from "../../../redis/wire.ts";
import { isOrderedUnder, isUnordered } from "./event-check.ts";
import type { Subscription } from "./subscription.ts";
import { RecentIds } from "./unordered.ts";
import type { PersonalSequencers } from "./personal-sequencers.ts";
import type { OnProblem, Tell, TopicsMetrics } from "./topics-parts.ts";

export interface IncomingParts {
  readonly topic: (name: string) => Subscription | undefined;
  readonly personal: Pick<PersonalSequencers, "accept">;
  readonly tell: Tell;
  readonly rejected: TopicsMetrics["rejected"];
  readonly onProblem: OnProblem;
}

const RECENT_IDS = 8192;
/** Of all users; beyond it the oldest are lost. */
const MAX_HELD = 1000;
/** What shows users what others did. */
const SHOWN: ReadonlySet<ClusterEvent["kind"]> = new Set<ClusterEvent["kind"]>([
  "message",
  "event",
  "command",
  "conversation",
]);
const NOTHING = Buffer.alloc(0);

type ConversationEvent = Extract<
  ClusterEvent,
  { readonly kind: "conversation" }
>;

function isHeld({ lostAtMs, line }: Subscription): boolean {
  return lostAtMs !== undefined || line?.isLevel === false;
}

export class Incoming {
  readonly #parts: IncomingParts;
  readonly #recent = new RecentIds(RECENT_IDS);
  /** The newest change of each conversation, by topic and channel. */
  readonly #held = new Map<
    string,
    { readonly topic: Subscription; readonly event: ConversationEvent }
  >();
  #lastPersonal: Buffer = NOTHING;

  constructor(parts: IncomingParts) {
    this.#parts = parts;
  }

  /** A frame came under that name; never throws. */
  accept(name: string, frame: Buffer): void {
    const topic = this.#parts.topic(name);
    if (topic === undefined) return; // not listened to any more
    if (kindOf(frame) === BATCH_FRAME) this.#acceptBatch(topic, frame);
    else this.#acceptOne(topic, frame);
  }

  /** Tells what was held of topics that are whole again. */
  tellHeld(): void {
    for (const [name, { topic, event }] of this.#held) {
      if (topic.isOpen && isHeld(topic)) continue;
      this.#held.delete(name);
      if (topic.isOpen) this.#parts.tell(event);
    }
  }

  /** Each frame for itself: one that cannot be read harms no other. */
  #acceptBatch(topic: Subscription, batch: Buffer): void {
    const isPersonal = topic.line === undefined;
    if (isPersonal && this.#lastPersonal.equals(batch)) return; // as of one frame
    const { frames, isWhole } = framesOf(batch);
    for (const frame of frames) this.#acceptOne(topic, frame);
    if (isPersonal) this.#lastPersonal = batch;
    if (!isWhole || frames.length === 0)
      this.#unreadable(new Error("frames are cut off"));
  }

  #acceptOne(topic: Subscription, frame: Buffer): void {
    try {
      this.#accept(topic, frame);
    } catch (error) {
      this.#unreadable(error);
    }
  }

  #unreadable(error: unknown): void {
    this.#parts.rejected("unreadable");
    this.#parts.onProblem(error, "An unreadable publication was dropped");
  }

  #accept(topic: Subscription, frame: Buffer): void {
    // Where both users are listened to it comes twice, mostly one right after the other.
    if (topic.line === undefined && this.#lastPersonal.equals(frame)) return;
    const publication = decodeFrame(frame);
    if (publication.kind === "mark") return this.#misplaced();
    const { event } = publication;
    if (publication.kind === "loose") {
      if (!isUnordered(event, topic.topic)) return this.#misplaced();
      if (isHeld(topic) && SHOWN.has(event.kind))
        return this.#holdBack(topic, event);
      if (this.#recent.isNew(publication.id)) this.#parts.tell(event);
      return;
    }
    if (!isOrderedUnder(publication.event, topic.topic))
      return this.#misplaced();
    if (topic.line !== undefined)
      return topic.line.accept(frame, publication.event);
    if (publication.event.kind === "removal") return this.#misplaced();
    this.#lastPersonal = frame;
    this.#parts.personal.accept(frame, publication.pub, publication.event);
  }

  /** Who may see it is not known. What is kept of messages and commands is read later, how a conversation stands is not. */
  #holdBack(topic: Subscription, event: ClusterEvent): void {
    if (event.kind !== "conversation") return;
    const { id, type } = event.conversation.channel;
    const name = `${topic.name} ${type}:${id}`;
    this.#held.delete(name); // the newest is the last to be told, and to be lost
    this.#held.set(name, { topic, event });
    const oldest = this.#held.keys().next();
    if (this.#held.size > MAX_HELD && !oldest.done)
      this.#held.delete(oldest.value);
  }

  #misplaced(): void {
    this.#parts.rejected("misplaced");
    const error = new Error("it is no event of the topic");
    this.#parts.onProblem(
      error,
      "A publication that does not belong to its topic was dropped",
    );
  }
}
