/** A question before something that cannot be taken back. The browser's own dialog: Escape and focus work. */

import { useLayoutEffect, useRef } from "preact/hooks";

export interface Question {
  title: string;
  text: string;
  yes: string;
  act: () => void;
}

export function Ask({ question, close }: { question: Question; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  // Before the next key: a question that opens a frame later is not there yet for whoever presses Escape at once.
  useLayoutEffect(() => {
    dialog.current!.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="ask-title">
      <h2 id="ask-title">{question.title}</h2>
      <p>{question.text}</p>
      <div class="row end">
        <button type="button" onClick={() => dialog.current!.close()}>
          Keep it
        </button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            dialog.current!.close();
            question.act();
          }}
        >
          {question.yes}
        </button>
      </div>
    </dialog>
  );
}
