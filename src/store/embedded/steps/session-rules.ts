// What follows from sessions being in the store together: whom a login ends, and whether a session
// may be continued. Pure; `redis/lua/session_rules.lua` and `redis/lua/session_login.lua` say it
// again, because there it must happen inside Redis. `test/contract/kick-cases.ts` has the cases.

import { MAIN_DEVICE, type SessionRecord } from "../../../broker/model.ts";
import type { Claim, LoggedInSession, LoginResult, NewestLogin } from "../../../broker/ports.ts";

/** What the kick rule looks at. */
type KickFacts = Pick<SessionRecord, "flag" | "level" | "deviceId">;

/** Labels of earlier logins that are remembered. */
const MAX_PAST = 8;

/** A session that another one ends, and the reason that it is closed with. */
interface EndedSession {
  readonly session: SessionRecord;
  readonly reason: "replaced" | "kicked";
}

/** A login and what the store holds after it. */
type Placed =
  | Extract<LoginResult, { readonly kind: "refused" }>
  | {
      readonly kind: "entered";
      readonly entry: LoggedInSession;
      readonly ended: readonly EndedSession[];
      /** Undefined: the session is a secondary one. */
      readonly newest: NewestLogin | undefined;
    };

/**
 * Decides on a login [decisions: Kick rule; resume is no login]. `entries` are the user's others,
 * `now` is in microseconds.
 */
export function place(
  session: SessionRecord,
  claim: Claim | undefined,
  {
    entries,
    newest,
    now,
  }: {
    readonly entries: readonly LoggedInSession[];
    /** Of the session's uid and flag. */
    readonly newest: NewestLogin | undefined;
    readonly now: number;
  },
): Placed {
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
      if (newest.ended !== undefined) return { kind: "refused", reason: newest.ended };
      order = newest.order;
    }
    for (const other of entries) {
      if (other.order <= order || !collide(session, other.session)) continue;
      if (!isSameDevice(session, other.session)) return { kind: "refused", reason: "kicked" };
      order = other.order;
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

/** Undefined: the session is a login. */
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
  const known = before?.label ?? "";
  const isSame = before?.order === order;
  const next = label === "" && isSame ? known : label;
  const past = before?.past ?? [];
  return {
    ...{ order, since, deviceId, label: next, ended: undefined },
    past: known === "" || known === next ? past : [...past, known].slice(-MAX_PAST),
  };
}

function ends(next: LoggedInSession, old: LoggedInSession): boolean {
  return collide(next.session, old.session) || isContinued(next, old);
}

function isReplacing(next: LoggedInSession, old: LoggedInSession): boolean {
  return isSameDevice(next.session, old.session) || isContinued(next, old);
}

/** Both are connections of one login. */
function isContinued(next: LoggedInSession, old: LoggedInSession): boolean {
  return next.order === old.order && next.session.flag === old.session.flag;
}

/**
 * Whether one of the two ends the other: which, is a matter of their order [decisions: Kick rule].
 */
function collide(one: KickFacts, other: KickFacts): boolean {
  if (one.flag !== other.flag) return false;
  if (isSameDevice(one, other)) return true;
  return one.level === MAIN_DEVICE && other.level === MAIN_DEVICE;
}

function isSameDevice(
  one: Pick<SessionRecord, "deviceId">,
  other: Pick<SessionRecord, "deviceId">,
): boolean {
  return one.deviceId !== "" && one.deviceId === other.deviceId;
}
