// The rules for a user's sessions: which sessions a login ends, and whether a session may be
// continued. `redis/lua/session_rules.lua` and `redis/lua/session_login.lua` contain the same
// rules, because the Redis driver must apply them inside Redis. `test/contract/kick-cases.ts`
// contains the test cases of both drivers.

import { MAIN_DEVICE, type SessionRecord } from "../../../broker/model.ts";
import type { Claim, LoggedInSession, LoginResult, NewestLogin } from "../../../broker/ports.ts";

type KickFacts = Pick<SessionRecord, "flag" | "level" | "deviceId">;

const MAX_PAST = 8;

interface EndedSession {
  readonly session: SessionRecord;
  readonly reason: "replaced" | "kicked";
}

export type LoginDecision =
  | Extract<LoginResult, { readonly kind: "refused" }>
  | {
      readonly kind: "entered";
      readonly entry: LoggedInSession;
      readonly ended: readonly EndedSession[];
      /** Newest main login. `undefined` if the session is secondary. */
      readonly newest: NewestLogin | undefined;
    };

/** Applies the rules of [decisions: Kick rule; resume is no login]. `now` is in microseconds. */
export function decideLogin(
  session: SessionRecord,
  claim: Claim | undefined,
  {
    entries,
    newest,
    now,
  }: {
    readonly entries: readonly LoggedInSession[];
    readonly newest: NewestLogin | undefined;
    readonly now: number;
  },
): LoginDecision {
  const isMain = session.level === MAIN_DEVICE;
  const label = claim !== undefined && "label" in claim ? claim.label : "";
  const orders = entries.map(({ order }) => order);
  const sinces = entries.map(({ since }) => since + 1);
  const last = Math.max(newest?.order ?? 0, ...orders);
  const since = Math.max(now, (newest?.since ?? 0) + 1, ...sinces);
  let order = claimedOrder(claim, isMain ? newest : undefined);
  if (order !== undefined && order > Math.max(now, last)) order = undefined;
  if (order !== undefined && isMain) {
    if (newest !== undefined && newest.order >= order) {
      const isLater = newest.order > order;
      if (isLater && !isSameDevice(session, newest)) return { kind: "refused", reason: "kicked" };
      // A login that was ended by a ban can be continued after the ban.
      if (newest.ended !== undefined && newest.ended !== "banned")
        return { kind: "refused", reason: newest.ended };
      order = newest.order;
    }
    for (const existing of entries) {
      if (existing.order <= order || !collide(session, existing.session)) continue;
      if (!isSameDevice(session, existing.session)) return { kind: "refused", reason: "kicked" };
      order = existing.order;
    }
  }
  const entry = { session, since, order: order ?? Math.max(now, last + 1) };
  return {
    kind: "entered",
    entry,
    ended: entries
      .filter((other) => ends(entry, other))
      .map((other) => ({
        session: other.session,
        reason: isReplacing(entry, other) ? "replaced" : "kicked",
      })),
    newest: isMain ? nextNewest(entry, label, newest) : undefined,
  };
}

/**
 * Returns the order of the claimed login, 0 if the label belongs to an older login, or `undefined`
 * if the login is unknown.
 */
function claimedOrder(
  claim: Claim | undefined,
  newest: NewestLogin | undefined,
): number | undefined {
  if (claim === undefined) return undefined;
  if ("order" in claim) return claim.order;
  if (newest === undefined) return undefined;
  if (claim.label === newest.label) return newest.order;
  return newest.past.includes(claim.label) ? 0 : undefined;
}

function nextNewest(
  { session, order, since }: LoggedInSession,
  label: string,
  before: NewestLogin | undefined,
): NewestLogin {
  const { deviceId } = session;
  const previousLabel = before?.label ?? "";
  const isSame = before?.order === order;
  const next = label === "" && isSame ? previousLabel : label;
  const past = before?.past ?? [];
  return {
    ...{ order, since, deviceId, label: next, ended: undefined },
    past:
      previousLabel === "" || previousLabel === next
        ? past
        : [...past, previousLabel].slice(-MAX_PAST),
  };
}

function ends(next: LoggedInSession, old: LoggedInSession): boolean {
  return collide(next.session, old.session) || isContinued(next, old);
}

function isReplacing(next: LoggedInSession, old: LoggedInSession): boolean {
  return isSameDevice(next.session, old.session) || isContinued(next, old);
}

function isContinued(next: LoggedInSession, old: LoggedInSession): boolean {
  return next.order === old.order && next.session.flag === old.session.flag;
}

/** Returns true if only one of the two sessions may stay [decisions: Kick rule]. */
function collide(a: KickFacts, b: KickFacts): boolean {
  if (a.flag !== b.flag) return false;
  if (isSameDevice(a, b)) return true;
  return a.level === MAIN_DEVICE && b.level === MAIN_DEVICE;
}

function isSameDevice(
  a: Pick<SessionRecord, "deviceId">,
  b: Pick<SessionRecord, "deviceId">,
): boolean {
  return a.deviceId !== "" && a.deviceId === b.deviceId;
}
