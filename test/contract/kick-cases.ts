// Who ends whom, who may go on and who may come back, as tables [decisions: Kick rule; resume is no
// login]. Data only; `sessions-kicks.ts` asks every driver.

import type { CloseReason } from "../../src/broker/errors.ts";

/** A device: its level, and the name it gives itself. */
export type FirstDevice = "main" | "main d1" | "secondary" | "secondary d1";
export type SecondDevice = FirstDevice | "main d2" | "secondary d2";

/**
 * A session that logged in first, behind the login of a second one of the same user and flag: with
 * which reason the second ends it; what it is told when its node asks whether it may go on; and
 * when it comes back as a new session that continues it: refused with that reason, or entered with
 * the order of the first or the second login.
 */
export type Meeting = readonly [
  ended: "stays" | CloseReason,
  confirmed: "confirmed" | CloseReason,
  continued: "first" | "second" | CloseReason,
];

const STAYS: Meeting = ["stays", "confirmed", "first"];
const KICKED: Meeting = ["kicked", "kicked", "kicked"];

export const MEETINGS: Readonly<Record<FirstDevice, Readonly<Record<SecondDevice, Meeting>>>> = {
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
/** Sessions of different flags never meet. */
export const OTHER_FLAG = STAYS;

/**
 * One call, its answer, and the sessions that it ends with the reasons they are closed with.
 *
 * Calls: `<name>: <level> [<device>] [web] [token <t>] [continues <name> | label <l>]` enters a
 * session; `leave`, `end <name> <reason>` and `confirm` are about one; `token <t> <level>`
 * registers the device of flag 0, `logout <level>` ends its token. Answers: `entered`, `entered as
 * <name>` with that one's order, `refused <reason>`, `unauthorized`, `confirmed`; of the other
 * calls `done`.
 */
export type KickLine = readonly [call: string, answer?: string, ended?: string];

export interface KickCase {
  readonly what: string;
  readonly lines: readonly KickLine[];
  /** The sessions in the store at the end. */
  readonly left: string;
}

export const KICK_CASES: readonly KickCase[] = [
  {
    what: "a main may end several: the main and its own device",
    lines: [
      ["a: main d1", "entered"],
      ["b: secondary d2", "entered"],
      ["c: secondary", "entered"],
      ["d: main d2", "entered", "a kicked, b replaced"],
    ],
    left: "c d",
  },
  {
    what: "a session that is entered again ends nobody, not itself",
    lines: [
      ["a: main d1", "entered"],
      ["a: main d1", "entered"],
    ],
    left: "a",
  },
  {
    what: "a main that continues keeps the place of its login and ends nobody",
    lines: [
      ["a: main d1", "entered"],
      ["leave a"],
      ["w: main web", "entered"],
      ["b: main d1 continues a", "entered as a"],
      ["leave b"],
      ["c: main continues b", "entered as a"],
    ],
    left: "c w",
  },
  {
    what: "a main that is still in is replaced by what continues it",
    lines: [
      ["a: main", "entered"],
      ["b: main continues a", "entered as a", "a replaced"],
      ["leave a"],
      ["c: main continues a", "entered as a", "b replaced"],
    ],
    left: "c",
  },
  {
    what: "a secondary that is still in is replaced by what continues it",
    lines: [
      ["a: secondary", "entered"],
      ["b: secondary continues a", "entered as a", "a replaced"],
      ["leave a"],
    ],
    left: "b",
  },
  {
    what: "a session that continues one of another flag leaves that one in",
    lines: [
      ["a: main", "entered"],
      ["b: secondary", "entered"],
      ["v: main web continues a", "entered"],
      ["w: secondary web continues b", "entered"],
    ],
    left: "a b v w",
  },
  {
    what: "a main loses to a later login, there or gone",
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
    left: "d",
  },
  {
    what: "of one device the newer connection wins silently, to a later login",
    lines: [
      ["a: main d1", "entered"],
      ["b: main d1", "entered", "a replaced"],
      ["c: main d1 continues a", "entered as b", "b replaced"],
      ["d: main d2", "entered", "c kicked"],
      ["e: main d1 continues a", "refused kicked"],
    ],
    left: "d",
  },
  {
    what: "a main is behind a login of its own device that left",
    lines: [
      ["a: main d1", "entered"],
      ["b: main d1", "entered", "a replaced"],
      ["leave b"],
      ["confirm a", "refused replaced"],
      ["c: main d1 continues a", "entered as b"],
    ],
    left: "c",
  },
  {
    what: "a main is behind a secondary of its own device that left",
    lines: [
      ["a: main d1", "entered"],
      ["b: secondary d1", "entered", "a replaced"],
      ["leave b"],
      ["confirm a", "refused replaced"],
      ["c: main d1 continues a", "entered as a"],
    ],
    left: "c",
  },
  {
    what: "a secondary is behind a login of its own device that left",
    lines: [
      ["a: secondary d1", "entered"],
      ["b: secondary d1", "entered", "a replaced"],
      ["leave b"],
      ["confirm a", "refused replaced"],
      ["c: secondary d1 continues a", "entered as a"],
    ],
    left: "c",
  },
  ...(["logged_out", "token_changed"] as const).map(
    (reason): KickCase => ({
      what: `a main that was ended as ${reason} is out, and ends no later login`,
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
      left: "d",
    }),
  ),
  {
    what: "a secondary that was ended is out, and comes back as a new session",
    lines: [
      ["a: secondary d1", "entered"],
      ["end a logged_out", "done", "a logged_out"],
      ["confirm a", "refused logged_out"],
      ["b: secondary d1 continues a", "entered as a"],
      ["confirm a", "refused logged_out"],
    ],
    left: "b",
  },
  {
    what: "the end of one session says nothing of the device's others",
    lines: [
      ["a: secondary", "entered"],
      ["b: secondary", "entered"],
      ["m: main", "entered"],
      ["end a logged_out", "done", "a logged_out"],
      ["confirm b", "confirmed"],
      ["confirm m", "confirmed"],
      ["n: main continues m", "entered as m", "m replaced"],
    ],
    left: "b n",
  },
  ...(["main", "secondary"] as const).flatMap((level): readonly KickCase[] => [
    {
      what: `a ${level} session's device logs out: it may not go on`,
      lines: [
        [`token t1 ${level}`],
        [`a: ${level} d1 token t1`, "entered"],
        [`logout ${level}`],
        ["confirm a", "refused logged_out"],
        [`b: ${level} d1 token t1`, "unauthorized"],
        [`token t1 ${level}`],
        ["confirm a", "refused logged_out"],
      ],
      left: "",
    },
    {
      what: `a ${level} session is ended, and its token registered again`,
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
      left: "b",
    },
    {
      what: `a ${level} session's device gets another token`,
      lines: [
        [`token t1 ${level}`],
        [`a: ${level} d1 token t1`, "entered"],
        [`token t1 ${level}`],
        ["confirm a", "confirmed"],
        [`token t2 ${level}`],
        level === "main" ? ["confirm a", "refused token_changed"] : ["confirm a", "confirmed"],
      ],
      left: level === "main" ? "" : "a",
    },
  ]),
  {
    what: "the device's level counts for kicks, not the one that is asked for",
    lines: [
      ["token t1 main"],
      ["a: secondary token t1", "entered"],
      ["b: secondary token t1", "entered", "a kicked"],
      ["token t1 secondary"],
      ["c: main token t1", "entered"],
      ["d: main token t1", "entered"],
    ],
    left: "b c d",
  },
  {
    what: "a label is one login, however often it comes",
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
    left: "g w",
  },
  {
    what: "a label names its login also when that was continued by its order",
    lines: [
      ["a: main label x", "entered"],
      ["b: main continues a", "entered as a", "a replaced"],
      ["c: main label x", "entered as a", "b replaced"],
    ],
    left: "c",
  },
  {
    what: "a label is remembered behind seven other logins",
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
    left: "i",
  },
  {
    what: "a label means nothing to a secondary session",
    lines: [
      ["a: secondary label x", "entered"],
      ["b: secondary label x", "entered"],
    ],
    left: "a b",
  },
];
