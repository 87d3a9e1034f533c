// The JSON documents in one WebSocket message: one as a rule, several as WuKongIM's servers accept
// it. No state. Never throws: a document that cannot be read is one of the results.

const MAX_DOCUMENTS = 100;

/** Undefined: it is no JSON. */
export type Document = { readonly value: unknown } | undefined;

const utf8 = new TextDecoder("utf-8", { fatal: true });

/** All documents of the message, in order; one that cannot be read is the last. */
export function readDocuments(data: Uint8Array): readonly Document[] {
  let text: string;
  try {
    text = utf8.decode(data);
  } catch {
    return [undefined];
  }
  const whole = parse(text);
  return whole === undefined ? readEach(text) : [whole];
}

function readEach(text: string): readonly Document[] {
  const documents: Document[] = [];
  for (let at = 0; at < text.length; ) {
    const end = endOfObject(text, at);
    const document = parse(text.slice(at, end));
    if (document === undefined && text.slice(at).trim() === "") break;
    documents.push(document);
    if (document === undefined || documents.length > MAX_DOCUMENTS) break;
    at = end;
  }
  if (documents.length > MAX_DOCUMENTS) documents[MAX_DOCUMENTS] = undefined;
  return documents.length === 0 ? [undefined] : documents;
}

function parse(text: string): Document {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}

/** Where the object that begins there ends; the end of the text if it does not. */
function endOfObject(text: string, from: number): number {
  let depth = 0;
  let isQuoted = false;
  for (let at = from; at < text.length; at++) {
    const letter = text[at];
    if (isQuoted) {
      if (letter === "\\") at += 1;
      else if (letter === '"') isQuoted = false;
    } else if (letter === '"') isQuoted = true;
    else if (letter === "{") depth += 1;
    else if (letter === "}") {
      depth -= 1;
      if (depth <= 0) return at + 1;
    }
  }
  return text.length;
}
