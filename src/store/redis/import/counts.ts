// Counts of what a move brought, by part of the layout: what the rows come to, and what Redis holds under the same names, so that nothing is there that
// was not moved. State: the sums.

import { GROUP_CHANNEL } from "../../../broker/model.ts";
import type { Semaphore } from "../../../lib/semaphore.ts";
import type { RedisLink } from "../../../redis/link.ts";
import type { Moved } from "../../moved.ts";
import { recordKey } from "../steps/channel-record.ts";
import { accessTokenKey, passwordsKey } from "../steps/managers.ts";

/** Each part of the layout: how much of it a key holds, and what it is for people. */
const PARTS = {
  devices: ["hlen", "devices"],
  managers: ["hlen", "managers' passwords"],
  tokens: ["exists", "access tokens"],
  info: ["hexists", "channels", "info"],
  permanent: ["scard", "subscribers"],
  temporary: ["scard", "temporary subscribers"],
  joinSeqs: ["hlen", "memberships"],
  log: ["xlen", "messages"],
  own: ["hlen", "senders' newest seqs"],
  stream: ["exists", "streams"],
  activeStream: ["exists", "active streams"],
  positions: ["hlen", "read positions"],
  inboxSeq: ["exists", "command inboxes"],
  inbox: ["xlen", "commands in inboxes"],
} as const;
type Part = keyof typeof PARTS;
const NAMES = Object.keys(PARTS) as readonly Part[];

/** Of a channel's head, beside those of its senders. */
const HEAD_FIELDS = ["seq", "pub", "red", "bare", "info"] as const;

/** How many of what Redis holds. */
export interface MovedCount {
  readonly what: string;
  readonly count: number;
}

export class MoveCounts {
  readonly #link: Pick<RedisLink, "call" | "keys">;
  readonly #line: Semaphore;
  readonly #wanted = new Map<Part, number>();
  /** What may be there beyond: it ended a short while ago. */
  readonly #allowed = new Map<Part, number>();
  readonly #found = new Map<Part, number>();
  #uid: string | undefined;
  #hasPasswords = false;

  /** `line` bounds what is asked at once. */
  constructor(parts: {
    readonly link: Pick<RedisLink, "call" | "keys">;
    readonly line: Semaphore;
  }) {
    this.#link = parts.link;
    this.#line = parts.line;
  }

  /** To be called with every row once, in their order; `nowMs` in Unix milliseconds. Throws as the link does. */
  async take(rows: readonly Moved[], nowMs: number): Promise<void> {
    const looks: Promise<void>[] = [];
    for (const moved of rows) {
      this.#want(moved, nowMs);
      for (const [part, key] of this.#keysOf(moved))
        looks.push(this.#look(part, key));
    }
    await Promise.all(looks);
  }

  /** Sentences about the parts of which Redis holds another number. */
  differences(): readonly string[] {
    return NAMES.flatMap((part) => {
      const wanted = this.#wanted.get(part) ?? 0;
      const most = wanted + (this.#allowed.get(part) ?? 0);
      const found = this.#found.get(part) ?? 0;
      if (found >= wanted && found <= most) return [];
      const had = found < wanted ? wanted : most;
      return [`${PARTS[part][1]}: the folder has ${had}, Redis ${found}`];
    });
  }

  /** Of each part that there is. */
  found(): readonly MovedCount[] {
    return NAMES.flatMap((part) => {
      const count = this.#found.get(part) ?? 0;
      return count === 0 ? [] : [{ what: PARTS[part][1], count }];
    });
  }

  #want(moved: Moved, nowMs: number): void {
    switch (moved.kind) {
      case "member":
        add(this.#wanted, "permanent", moved.permanent ? 1 : 0);
        add(this.#wanted, "temporary", moved.temporary ? 1 : 0);
        return;
      case "stream":
        add(this.#wanted, "stream", 1);
        add(
          this.#wanted,
          "activeStream",
          moved.snapshot.state === "active" ? 1 : 0,
        );
        return;
      case "token": {
        const isGood = nowMs < moved.expiresAtMs;
        add(isGood ? this.#wanted : this.#allowed, "tokens", 1);
        return;
      }
      case "copy": {
        const waits = nowMs < moved.endMs;
        add(waits ? this.#wanted : this.#allowed, "inbox", 1);
        return;
      }
      default: {
        const part = PART_OF[moved.kind];
        if (part !== undefined) add(this.#wanted, part, 1);
      }
    }
  }

  /** The keys that are to be counted when this row comes. */
  #keysOf(moved: Moved): readonly (readonly [Part, string])[] {
    const { keys } = this.#link;
    switch (moved.kind) {
      case "device": {
        const { uid } = moved.device;
        if (uid === this.#uid) return []; // rows of a user come together
        this.#uid = uid;
        return [["devices", keys.user("devices", uid)]];
      }
      case "password": {
        if (this.#hasPasswords) return []; // one key has all of them
        this.#hasPasswords = true;
        return [["managers", passwordsKey(keys)]];
      }
      case "token":
        return [["tokens", accessTokenKey(keys, moved.hash)]];
      case "channel": {
        const name = recordKey(moved.info);
        const isGroup = moved.info.type === GROUP_CHANNEL;
        const parts: readonly Part[] = ["permanent", "temporary"];
        const members = [...parts, ...(isGroup ? (["joinSeqs"] as const) : [])];
        return [
          ["info", keys.channel("head", name)],
          ...members.map((part) => [part, keys.channel(part, name)] as const),
        ];
      }
      case "head":
        return [
          ["own", keys.channel("head", moved.key)],
          ...(["log", "positions", "activeStream"] as const).map(
            (part) => [part, keys.channel(part, moved.key)] as const,
          ),
        ];
      case "stream": {
        const { key, clientMsgNo } = moved.snapshot;
        return [["stream", keys.channel("stream", key, clientMsgNo)]];
      }
      case "inbox":
        return (["inboxSeq", "inbox"] as const).map(
          (part) => [part, keys.user(part, moved.uid)] as const,
        );
      default:
        return [];
    }
  }

  async #look(part: Part, key: string): Promise<void> {
    const count = await this.#line.run(() => this.#count(part, key));
    add(this.#found, part, count);
  }

  async #count(part: Part, key: string): Promise<number> {
    const [command, , ...field] = PARTS[part];
    const count = Number(await this.#link.call(command, key, ...field));
    if (part !== "own" || count === 0) return count;
    const others = await this.#link.call("hmget", key, ...HEAD_FIELDS);
    const isThere = (one: unknown) => one !== null;
    return count - (others as readonly unknown[]).filter(isThere).length; // HMGET's reply
  }
}

/** Of rows that count for one each. */
const PART_OF: Partial<Record<Moved["kind"], Part>> = {
  ...{
    device: "devices",
    password: "managers",
    channel: "info",
    group: "joinSeqs",
  },
  ...{ message: "log", own: "own", position: "positions", inbox: "inboxSeq" },
};

function add(sums: Map<Part, number>, part: Part, count: number): void {
  sums.set(part, (sums.get(part) ?? 0) + count);
}
