// Lists of members that were replaced, in Redis: each is set aside in the step that puts another in its place, and looked through afterwards, piece by
// piece, for who is no member any more. These are left in it, and in one list at most, until they were told: what a call that was cut off left is
// found by the next. No state.

import { randomUUID } from "node:crypto";
import { groupTopic, type SubscriberAddition } from "../../broker/model.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript, type Script } from "../../redis/script.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const before = [lua("channel_record"), lua("members")];
const RESET = loadScript(lua("members_reset"), ...before);
const GONE = loadScript(lua("members_gone"), ...before);
const UNTOLD = loadScript(lua("members_untold"));
const TOLD = loadScript(lua("members_told"));

export const memberListScripts: readonly Script[] = [
  ...[RESET, GONE],
  ...[UNTOLD, TOLD],
];

/** Members looked at in one step: about a millisecond. */
const PIECE = 1000;
/** Then nobody repeats the call any more. */
const KEPT_MS = 86_400_000;

/** `key`: the channel's, as its record has it. */
export class MemberLists {
  readonly #link: RedisLink;
  readonly #key: string;

  constructor(link: RedisLink, key: string) {
    this.#link = link;
    this.#key = key;
  }

  /** One step; its reply as `members_reset.lua` says. `kinds`: the sets of the kind and of the other. */
  replace(
    kinds: readonly string[],
    args: readonly (string | number)[],
  ): Promise<unknown> {
    const name = randomUUID();
    const keys = [
      ...this.#keys("info", ...kinds),
      ...this.#keys("join", "head", "pos", "own", "olds"),
      this.#old(name),
    ];
    const group = removalArgs(this.#link, this.#key);
    return this.#link.run(RESET, keys, [...args, name, KEPT_MS, ...group]);
  }

  /** Who was in replaced lists and is no member any more, each once and sorted; and what is to be called when they were told. */
  async gone(): Promise<Omit<SubscriberAddition, "added">> {
    const gone = new Set<string>();
    const untold: string[] = [];
    const [olds = ""] = this.#keys("olds");
    for (const name of texts(await this.#link.call("smembers", olds))) {
      const found = await this.#lookThrough(this.#old(name));
      for (const uid of found) gone.add(uid);
      if (found.size > 0) untold.push(name);
      else await this.#told(name, []);
    }
    const [list] = untold;
    if (list === undefined) return { gone: [] };
    if (untold.length > 1) await this.#join(untold);
    const sorted = [...gone].sort();
    return { gone: sorted, goneTold: () => this.#told(list, sorted) };
  }

  async #join(untold: readonly string[]): Promise<void> {
    const lists = untold.map((name) => this.#old(name));
    await this.#link.run(
      UNTOLD,
      [...this.#keys("olds"), ...lists],
      [KEPT_MS, ...untold],
    );
  }

  async #lookThrough(list: string): Promise<ReadonlySet<string>> {
    const keys = [list, ...this.#keys("perm", "temp", "join", "pos", "own")];
    const gone = new Set<string>();
    let from = "0";
    do {
      const page = await this.#link.run(GONE, keys, [from, PIECE]);
      const [next, some] = page as readonly [Buffer, unknown]; // as its header says
      for (const uid of texts(some)) gone.add(uid);
      from = next.toString();
    } while (from !== "0");
    return gone;
  }

  /** A list in which nobody is left is forgotten. */
  async #told(name: string, uids: readonly string[]): Promise<void> {
    const keys = [...this.#keys("olds"), this.#old(name)];
    for (let at = 0; at === 0 || at < uids.length; at += PIECE)
      await this.#link.run(TOLD, keys, [name, ...uids.slice(at, at + PIECE)]);
  }

  #old(name: string): string {
    return this.#link.keys.channel("old", this.#key, name);
  }

  #keys(...names: readonly string[]): readonly string[] {
    return names.map((name) => this.#link.keys.channel(name, this.#key));
  }
}

/** What a step needs to tell a group's nodes of removals: its topic and id; of another channel nothing. */
export function removalArgs(
  { keys }: RedisLink,
  key: string,
): readonly [string, string] {
  if (!key.startsWith("2:")) return ["", ""];
  const id = key.slice(2);
  return [keys.topic(groupTopic(id)), id];
}

function texts(reply: unknown): string[] {
  return (reply as readonly Buffer[]).map((one) => one.toString());
}
