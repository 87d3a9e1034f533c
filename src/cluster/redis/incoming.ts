// Takes each frame that came to where it belongs: the group's line, the personal channels' lines, or, out of turn, straight to the listener, once.
// What cannot be read is reported and left out. State: ids of what was told lately, the last frame of a personal channel.

import {
  COMMAND_FRAME,
  decodeFrame,
  EVENT_FRAME,
  kindOf,
  LOOSE_FRAME,
  MESSAGE_FRAME,
  type Publication,
} from "../../redis/wire.ts";
import type { Listened } from "./listened.ts";
import { RecentIds } from "./loose.ts";
import type { PersonalLines } from "./personal-lines.ts";
import type { OnProblem, Tell } from "./topics-parts.ts";

export interface IncomingParts {
  readonly topic: (name: string) => Listened | undefined;
  readonly personal: Pick<PersonalLines, "accept">;
  readonly tell: Tell;
  readonly onProblem: OnProblem;
}

const RECENT_IDS = 8192;
const NOTHING = Buffer.alloc(0);

export class Incoming {
  readonly #parts: IncomingParts;
  readonly #recent = new RecentIds(RECENT_IDS);
  #lastPersonal: Buffer = NOTHING;

  constructor(parts: IncomingParts) {
    this.#parts = parts;
  }

  /** A frame came under that name; never throws. */
  accept(name: string, frame: Buffer): void {
    const topic = this.#parts.topic(name);
    if (topic === undefined) return; // not listened to any more
    try {
      this.#accept(topic, frame);
    } catch (error) {
      this.#parts.onProblem(error, "reading what a node published");
    }
  }

  #accept(topic: Listened, frame: Buffer): void {
    switch (kindOf(frame)) {
      case MESSAGE_FRAME:
      case EVENT_FRAME:
        if (topic.line === undefined) this.#acceptPersonal(frame);
        else topic.line.accept(frame);
        break;
      case LOOSE_FRAME:
      case COMMAND_FRAME:
        this.#acceptLoose(decodeFrame(frame));
        break;
      default:
        decodeFrame(frame); // throws what is wrong with it
    }
  }

  /** Where both users are listened to it comes twice, mostly one right after the other. */
  #acceptPersonal(frame: Buffer): void {
    if (this.#lastPersonal.equals(frame)) return;
    this.#lastPersonal = frame;
    const publication = decodeFrame(frame);
    if (publication.kind !== "ordered") return;
    this.#parts.personal.accept(frame, publication.pub, publication.event);
  }

  #acceptLoose(publication: Publication): void {
    if (publication.kind !== "loose") return;
    if (this.#recent.isNew(publication.id)) this.#parts.tell(publication.event);
  }
}
