// Counts of what a move brought, by part of the layout: what the rows come to, and what Redis holds under the same names, so that nothing is there that
// was not moved. State: the sums.

import { GROUP_CHANNEL } from "../../broker/model.ts";
import type { Line } from "../../lib/line.ts";
import type { RedisLink } from "../../redis/link.ts";
import type { Moved } from "../moved.ts";
import { recordKey } from "./channel-record.ts";

const LENGTHS = {
  ...{ dev: "hlen", perm: "scard", temp: "scard", join: "hlen" },
  ...{ log: "xlen", own: "hlen", pos: "hlen" },
} as const;
type Part = keyof typeof LENGTHS;

export class MoveCounts {
  readonly #link: Pick<RedisLink, "call" | "keys">;
  readonly #line: Line;
  readonly #wanted = new Map<Part, number>();
  readonly #found = new Map<Part, number>();
  #uid: string | undefined;

  /** `line` bounds what is asked at once. */
  constructor(parts: {
    readonly link: Pick<RedisLink, "call" | "keys">;
    readonly line: Line;
  }) {
    this.#link = parts.link;
    this.#line = parts.line;
  }

  /** To be called with every row once, in their order. Throws as the link does. */
  async take(rows: readonly Moved[]): Promise<void> {
    const looks: Promise<void>[] = [];
    for (const moved of rows) {
      this.#want(moved);
      for (const [part, key] of this.#keysOf(moved))
        looks.push(this.#look(part, key));
    }
    await Promise.all(looks);
  }

  /** A sentence about the first part of which Redis holds another number; undefined: all are right. */
  difference(): string | undefined {
    for (const part of Object.keys(LENGTHS) as Part[]) {
      const wanted = this.#wanted.get(part) ?? 0;
      const found = this.#found.get(part) ?? 0;
      if (wanted !== found)
        return `${part}: the folder has ${wanted}, Redis ${found}`;
    }
    return undefined;
  }

  #want(moved: Moved): void {
    const parts: Partial<Record<Moved["kind"], Part>> = {
      ...{ device: "dev", group: "join", message: "log" },
      ...{ own: "own", position: "pos" },
    };
    const part = parts[moved.kind];
    if (part !== undefined) add(this.#wanted, part, 1);
    if (moved.kind !== "member") return;
    add(this.#wanted, "perm", moved.permanent ? 1 : 0);
    add(this.#wanted, "temp", moved.temporary ? 1 : 0);
  }

  /** The keys that are to be counted when this row comes. */
  #keysOf(moved: Moved): readonly (readonly [Part, string])[] {
    const { keys } = this.#link;
    switch (moved.kind) {
      case "device": {
        const { uid } = moved.device;
        if (uid === this.#uid) return []; // rows of a user come together
        this.#uid = uid;
        return [["dev", keys.user("dev", uid)]];
      }
      case "channel": {
        const name = recordKey(moved.info);
        const of = (part: Part) => [part, keys.channel(part, name)] as const;
        const isGroup = moved.info.type === GROUP_CHANNEL;
        return isGroup
          ? [of("perm"), of("temp"), of("join")]
          : [of("perm"), of("temp")];
      }
      case "head": {
        const of = (part: Part) =>
          [part, keys.channel(part, moved.key)] as const;
        return [of("log"), of("own"), of("pos")];
      }
      default:
        return [];
    }
  }

  async #look(part: Part, key: string): Promise<void> {
    const length = await this.#line.run(() =>
      this.#link.call(LENGTHS[part], key),
    );
    add(this.#found, part, Number(length));
  }
}

function add(sums: Map<Part, number>, part: Part, count: number): void {
  sums.set(part, (sums.get(part) ?? 0) + count);
}
