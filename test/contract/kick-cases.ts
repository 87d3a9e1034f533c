// Tables of the kick rule: which sessions a login ends, and which sessions may stay or be
// continued [decisions: Kick rule; resume is no login]. Contains only data; `sessions-kicks.ts`
// tests every driver with it.

import type { CloseReason } from "../../src/broker/errors.ts";

/** A device, named by the level of its session and, if it has a device id, by this id. */
export type FirstDevice = "main" | "main d1" | "secondary" | "secondary d1";
export type SecondDevice = FirstDevice | "main d2" | "secondary d2";

/**
 * Outcome for the first session after a second session of the same user and flag logged in.
 *
 * - `ended`: reason with which the second login ends the first session.
 * - `confirmed`: result when the node of the first session confirms the first session.
 * - `continued`: result when a new session continues the first session. The new session enters with
 * the order of the first or second login, or is refused with the reason.
 */
export type PairOutcome = readonly [
  ended: "stays" | CloseReason,
  confirmed: "confirmed" | CloseReason,
  continued: "first" | "second" | CloseReason,
];

const STAYS: PairOutcome = ["stays", "confirmed", "first"];
const KICKED: PairOutcome = ["kicked", "kicked", "kicked"];

/** The outcomes for all pairs of a first device and a second device. */
export const PAIR_OUTCOMES: Readonly<
  Record<FirstDevice, Readonly<Record<SecondDevice, PairOutcome>>>
> = {
  main: {
    main: KICKED,
    "main d1": KICKED,
    "main d2": KICKED,
    secondary: STAYS,
    "secondary d1": STAYS,
    "secondary d2": STAYS,
  },
  "main d1": {
    main: KICKED,
    "main d1": ["replaced", "replaced", "second"],
    "main d2": KICKED,
    secondary: STAYS,
    "secondary d1": ["replaced", "replaced", "second"],
    "secondary d2": STAYS,
  },
  secondary: {
    main: STAYS,
    "main d1": STAYS,
    "main d2": STAYS,
    secondary: STAYS,
    "secondary d1": STAYS,
    "secondary d2": STAYS,
  },
  "secondary d1": {
    main: STAYS,
    "main d1": ["replaced", "replaced", "first"],
    "main d2": STAYS,
    secondary: STAYS,
    "secondary d1": ["replaced", "replaced", "first"],
    "secondary d2": STAYS,
  },
};
/** Outcome if the two sessions have different flags. They do not affect each other. */
export const OTHER_FLAG_OUTCOME = STAYS;

/**
 * One call, its result (by default `done`), and the sessions that it ends, each with its reason.
 *
 * | call                                                | meaning                            |
 * | `<name>: <level> [<device>] [web] [token <t>]`      | a session logs in                  |
 * | `… continues <name>`                                | the login continues another login  |
 * | `… label <l>`                                       | the login has a label              |
 * | `leave <name>`                                      | the session is removed             |
 * | `end <name> <reason>`                               | the session is ended               |
 * | `confirm <name>`                                    | the node confirms the session      |
 * | `token <t> <level>`                                 | the device of flag 0 is registered |
 * | `logout <level>`                                    | the token of the device is removed |
 * | `ban`, `unban`                                      | the account is banned or unbanned  |
 *
 * A login returns `entered`, `entered as <name>` if it has the order of that login, `refused
 * <reason>` or `unauthorized`. `confirm` returns `confirmed` or `refused <reason>`.
 */
export type KickLine = readonly [call: string, result?: string, ended?: string];

/** A sequence of calls by one user's sessions. */
export interface KickCase {
  readonly title: string;
  readonly lines: readonly KickLine[];
  /** Names of the sessions in the store at the end. */
  readonly remaining: string;
}

export const KICK_CASES: readonly KickCase[] = [
  {
    title: "a main login ends the other main session and the other session of its own device",
    lines: [
      ["a: main d1", "entered"],
      ["b: secondary d2", "entered"],
      ["c: secondary", "entered"],
      ["d: main d2", "entered", "a kicked, b replaced"],
    ],
    remaining: "c d",
  },
  {
    title: "a repeated login of the same session ends no session",
    lines: [
      ["a: main d1", "entered"],
      ["a: main d1", "entered"],
    ],
    remaining: "a",
  },
  {
    title:
      "a main session that continues a login keeps the order of that login and ends no session",
    lines: [
      ["a: main d1", "entered"],
      ["leave a"],
      ["w: main web", "entered"],
      ["b: main d1 continues a", "entered as a"],
      ["leave b"],
      ["c: main continues b", "entered as a"],
    ],
    remaining: "c w",
  },
  {
    title: "a main session that is still online is replaced by the session that continues it",
    lines: [
      ["a: main", "entered"],
      ["b: main continues a", "entered as a", "a replaced"],
      ["leave a"],
      ["c: main continues a", "entered as a", "b replaced"],
    ],
    remaining: "c",
  },
  {
    title: "a secondary session that is still online is replaced by the session that continues it",
    lines: [
      ["a: secondary", "entered"],
      ["b: secondary continues a", "entered as a", "a replaced"],
      ["leave a"],
    ],
    remaining: "b",
  },
  {
    title:
      "a session that continues a login of a different flag counts as a new login, and both sessions stay",
    lines: [
      ["a: main", "entered"],
      ["b: secondary", "entered"],
      ["v: main web continues a", "entered"],
      ["w: secondary web continues b", "entered"],
    ],
    remaining: "a b v w",
  },
  {
    title:
      "a main session cannot be continued after another device logged in, even if that device left",
    lines: [
      ["a: main d1", "entered"],
      ["b: main d2", "entered", "a kicked"],
      ["c: main d1 continues a", "refused kicked"],
      ["c: main continues a", "refused kicked"],
      ["leave b"],
      ["c: main continues a", "refused kicked"],
      ["confirm a", "refused kicked"],
      ["b2: main continues b", "entered as b"],
      ["c: main continues a", "refused kicked"],
      ["d: main", "entered", "b2 kicked"],
      ["c: main continues b", "refused kicked"],
    ],
    remaining: "d",
  },
  {
    title: "the newest session of a device replaces its earlier ones, until another device logs in",
    lines: [
      ["a: main d1", "entered"],
      ["b: main d1", "entered", "a replaced"],
      ["c: main d1 continues a", "entered as b", "b replaced"],
      ["d: main d2", "entered", "c kicked"],
      ["e: main d1 continues a", "refused kicked"],
    ],
    remaining: "d",
  },
  {
    title:
      "a main session that a newer session of its device replaced stays replaced after that session left",
    lines: [
      ["a: main d1", "entered"],
      ["b: main d1", "entered", "a replaced"],
      ["leave b"],
      ["confirm a", "refused replaced"],
      ["c: main d1 continues a", "entered as b"],
    ],
    remaining: "c",
  },
  {
    title:
      "a main session that a secondary session of its device replaced stays replaced after that session left",
    lines: [
      ["a: main d1", "entered"],
      ["b: secondary d1", "entered", "a replaced"],
      ["leave b"],
      ["confirm a", "refused replaced"],
      ["c: main d1 continues a", "entered as a"],
    ],
    remaining: "c",
  },
  {
    title:
      "a secondary session that a newer session of its device replaced stays replaced after that session left",
    lines: [
      ["a: secondary d1", "entered"],
      ["b: secondary d1", "entered", "a replaced"],
      ["leave b"],
      ["confirm a", "refused replaced"],
      ["c: secondary d1 continues a", "entered as a"],
    ],
    remaining: "c",
  },
  ...(["logged_out", "token_changed"] as const).map(
    (reason): KickCase => ({
      title: `a main session that was ended with ${reason} cannot return, and ending it again does not affect a later login`,
      lines: [
        ["a: main d1", "entered"],
        [`end a ${reason}`, "done", `a ${reason}`],
        ["confirm a", `refused ${reason}`],
        ["b: main d1 continues a", `refused ${reason}`],
        ["c: main", "entered"],
        ["b: main continues a", "refused kicked"],
        [`end a ${reason}`, "done", `a ${reason}`],
        ["confirm c", "confirmed"],
        ["d: main continues c", "entered as c", "c replaced"],
      ],
      remaining: "d",
    }),
  ),
  ...(["main", "secondary"] as const).map(
    (level): KickCase => ({
      title: `a banned account has no ${level} session until the ban ends, and then its sessions can be continued`,
      lines: [
        ["token t1 main"],
        [`a: ${level} d1`, "entered"],
        [`e: ${level} web`, "entered"],
        ["ban"],
        ["b: main d1", "refused banned"],
        [`b: ${level} d1 continues a`, "refused banned"],
        ["b: main d2 token t1", "refused banned"],
        ["b: main d2 token wrong", "unauthorized"],
        ["confirm a", "refused banned"],
        ["end a banned", "done", "a banned"],
        ["end e banned", "done", "e banned"],
        ["confirm e", "refused banned"],
        ["ban"],
        ["unban"],
        ["unban"],
        [`c: ${level} d1 continues a`, "entered as a"],
        ["d: secondary", "entered"],
        ["confirm c", "confirmed"],
      ],
      remaining: "c d",
    }),
  ),
  {
    title: "a secondary session that was ended is refused, and a new session can continue it",
    lines: [
      ["a: secondary d1", "entered"],
      ["end a logged_out", "done", "a logged_out"],
      ["confirm a", "refused logged_out"],
      ["b: secondary d1 continues a", "entered as a"],
      ["confirm a", "refused logged_out"],
    ],
    remaining: "b",
  },
  {
    title: "ending one session does not affect the other sessions of the user",
    lines: [
      ["a: secondary", "entered"],
      ["b: secondary", "entered"],
      ["m: main", "entered"],
      ["end a logged_out", "done", "a logged_out"],
      ["confirm b", "confirmed"],
      ["confirm m", "confirmed"],
      ["n: main continues m", "entered as m", "m replaced"],
    ],
    remaining: "b n",
  },
  ...(["main", "secondary"] as const).flatMap((level): readonly KickCase[] => [
    {
      title: `a ${level} session is refused after its device logged out, even if the token is registered again`,
      lines: [
        [`token t1 ${level}`],
        [`a: ${level} d1 token t1`, "entered"],
        [`logout ${level}`],
        ["confirm a", "refused logged_out"],
        [`b: ${level} d1 token t1`, "unauthorized"],
        [`token t1 ${level}`],
        ["confirm a", "refused logged_out"],
      ],
      remaining: "",
    },
    {
      title: `a ${level} session that was ended stays ended after its token is registered again`,
      lines: [
        [`token t1 ${level}`],
        [`a: ${level} d1 token t1`, "entered"],
        [`logout ${level}`],
        ["end a logged_out", "done", "a logged_out"],
        [`token t1 ${level}`],
        ["confirm a", "refused logged_out"],
        [`b: ${level} d1 token t1`, "entered"],
        ["confirm b", "confirmed"],
      ],
      remaining: "b",
    },
    {
      title: `a ${level} session is ${level === "main" ? "refused" : "confirmed"} after its device received a different token`,
      lines: [
        [`token t1 ${level}`],
        [`a: ${level} d1 token t1`, "entered"],
        [`token t1 ${level}`],
        ["confirm a", "confirmed"],
        [`token t2 ${level}`],
        level === "main" ? ["confirm a", "refused token_changed"] : ["confirm a", "confirmed"],
      ],
      remaining: level === "main" ? "" : "a",
    },
  ]),
  {
    title: "the registered level of the device determines kicks, not the level in the login",
    lines: [
      ["token t1 main"],
      ["a: secondary token t1", "entered"],
      ["b: secondary token t1", "entered", "a kicked"],
      ["token t1 secondary"],
      ["c: main token t1", "entered"],
      ["d: main token t1", "entered"],
    ],
    remaining: "b c d",
  },
  {
    title: "logins with the same label count as one login",
    lines: [
      ["a: main d1 label x", "entered"],
      ["b: main d1 label x", "entered as a", "a replaced"],
      ["c: main d1 continues b", "entered as a", "b replaced"],
      ["d: main d1 label x", "entered as a", "c replaced"],
      ["w: main d1 web label x", "entered"],
      ["e: main d2 label y", "entered", "d kicked"],
      ["f: main d1 label x", "refused kicked"],
      ["f: main d1 label x", "refused kicked"],
      ["g: main d2 label y", "entered as e", "e replaced"],
    ],
    remaining: "g w",
  },
  {
    title: "a label still identifies its login after the login was continued by its order",
    lines: [
      ["a: main label x", "entered"],
      ["b: main continues a", "entered as a", "a replaced"],
      ["c: main label x", "entered as a", "b replaced"],
    ],
    remaining: "c",
  },
  {
    title: "a label identifies its login even after seven later logins",
    lines: [
      ["a: main d1 label x", "entered"],
      ["b: main d2 label 0", "entered", "a kicked"],
      ["c: main d2 label 1", "entered", "b replaced"],
      ["d: main d2 label 2", "entered", "c replaced"],
      ["e: main d2 label 3", "entered", "d replaced"],
      ["f: main d2 label 4", "entered", "e replaced"],
      ["g: main d2 label 5", "entered", "f replaced"],
      ["h: main d2 label 6", "entered", "g replaced"],
      ["i: main label x", "refused kicked"],
      ["i: main d2 label 6", "entered as h", "h replaced"],
    ],
    remaining: "i",
  },
  {
    title: "a label has no effect on secondary sessions",
    lines: [
      ["a: secondary label x", "entered"],
      ["b: secondary label x", "entered"],
    ],
    remaining: "a b",
  },
];
