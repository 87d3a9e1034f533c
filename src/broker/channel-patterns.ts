// Channel patterns, such as those in the `hooks.send.channels` setting and in the `jd` claim of a
// JWT. Pure functions.

import { type ChannelRef, type ChannelType, isId } from "./model.ts";

/**
 * Pattern that matches channels whose id equals `id`, or begins with `id` if `isPrefix` is true.
 * `type` is `undefined` if channels of any type match.
 */
export interface ChannelPattern {
  readonly type: ChannelType | undefined;
  readonly id: string;
  readonly isPrefix: boolean;
}

export const PATTERN_FORM =
  "* for all channels, or <type>:<id>. A * at the end selects all ids that begin with the text before it, for example 2:support-*";

export function parseChannelPattern(text: string): ChannelPattern | undefined {
  if (text === "*") return { type: undefined, id: "", isPrefix: true };
  const [, type, rest = ""] = /^([12]):(.+)$/s.exec(text) ?? [];
  const isPrefix = rest.endsWith("*");
  const id = isPrefix ? rest.slice(0, -1) : rest;
  if (type === undefined || id.includes("*") || (id !== "" && !isId(id))) return undefined;
  return { type: Number(type) as ChannelType, id, isPrefix }; // the expression allows only 1 and 2
}

/**
 * Returns true if any of the patterns matches the channel. The id of a personal channel is the
 * other user's uid.
 */
export function matchesAny(patterns: readonly ChannelPattern[], channel: ChannelRef): boolean {
  return patterns.some(
    ({ type, id, isPrefix }) =>
      (type === undefined || type === channel.type) &&
      (isPrefix ? channel.id.startsWith(id) : channel.id === id),
  );
}
