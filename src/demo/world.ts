// The users of the demo, and its initial messages.

interface User {
  readonly uid: string;
  readonly name: string;
  readonly token: string;
}

export interface World {
  /** Prefix of all ids: `demo-` and 8 random letters. */
  readonly prefix: string;
  readonly users: readonly [ann: User, ben: User];
  /** Id of the group that both users and the bot belong to. */
  readonly group: string;
  readonly bot: string;
}

/** One side of the page: the user whose devices it shows, and the other user. */
export interface Seat {
  readonly clientUrl: string;
  readonly world: World;
  readonly user: User;
  readonly peer: User;
}

/** Creates ids that no other visitor has, so that visitors do not close each other's sessions. */
export function createWorld(): World {
  const prefix = `demo-${randomLetters(8)}`;
  const ann = { uid: `${prefix}-ann`, name: "Ann", token: randomLetters(24) };
  const ben = { uid: `${prefix}-ben`, name: "Ben", token: randomLetters(24) };
  return { prefix, users: [ann, ben], group: `${prefix}-team`, bot: `${prefix}-bot` };
}

export function randomLetters(count: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(count));
  return String.fromCharCode(...bytes.map((byte) => 97 + (byte % 26)));
}

/** Earlier messages of the group. The two users alternate. */
export const HISTORY = `Morning! Did the new beans arrive? / Yes, two bags. One is from Yunnan.
/ Lovely. What do they smell of? / Plums, and a bit of cocoa. / Then let us put them on the
menu. / From Friday? / Friday works. Who prints the cards? / I can, if you send me the text. /
You will have it before noon. / How many tables on Friday? / Twelve so far, and one group of
eight. / Then I will ask Mei for help. / Good idea. Did you see the review? / The one about the
window seat? / Yes. Five stars for a chair. / It is a good chair. / We should buy a second one.
/ Then we need a second window. / Very funny. How is the sign? / Painted. It says “Open from
eight”. / Short and clear. I like it. / Shall I hang it up today? / Please do. Then we are
ready for Friday. / Almost. What do we say when people ask about our name? / Ask the AI. It has
time.`
  .replaceAll("\n", " ")
  .split(" / ");

export const QUESTION = "Why are we called Golden Bean?";

export const FAKE_ANSWER = `Jindou is Chinese for “golden bean”. I am not a real model, though: the
backend of this page sends my words one at a time, and the broker stores each of them before you see
it. If one of you loses the connection now, the missing words arrive when it is back. And if you have
read enough, stop me: what I have written so far stays in the history.`;
