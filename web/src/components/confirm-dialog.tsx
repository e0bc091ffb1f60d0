/** Asks before something that cannot be undone. The browser's own dialog: Escape and focus work. */

import { useLayoutEffect, useRef } from "preact/hooks";

export interface Confirmation {
  title: string;
  text: string;
  confirmLabel: string;
  onConfirm: () => void;
}

export function ConfirmDialog({ confirmation, onClose }: { confirmation: Confirmation; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  // In a layout effect, so that the dialog is open before the next key press: Escape pressed at once must reach it.
  useLayoutEffect(() => {
    dialog.current!.showModal();
  }, []);
  const confirm = () => {
    dialog.current!.close();
    confirmation.onConfirm();
  };
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="confirm-title">
      <h2 id="confirm-title">{confirmation.title}</h2>
      <p>{confirmation.text}</p>
      <div class="row dialog-buttons">
        <button type="button" onClick={() => dialog.current!.close()}>
          Keep it
        </button>
        <button type="button" class="danger" onClick={confirm}>
          {confirmation.confirmLabel}
        </button>
      </div>
    </dialog>
  );
}
